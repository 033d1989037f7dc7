"""Small run folders to compare, and a browser to look at the page with."""

import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

OPERATIVE = """import mrfquant.models

# Macros:
# ==============================================================================
width = 1.0

# Parameters for Experiment:
# ==============================================================================
Experiment.inference = @{method}
Experiment.seed = {seed}

# Parameters for Geometric:
# ==============================================================================
Geometric.rho = {rho}
"""


@pytest.fixture
def make_run(tmp_path):
    """Makes a run folder below tmp_path/runs; `top1=None` leaves it unfinished."""

    def make_run(name, top1=90.0, method="PMF", seed=0, rho=1.2, records=None, **fields):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.gin").write_text("")
        (folder / "operative.gin").write_text(OPERATIVE.format(method=method, seed=seed, rho=rho))
        if records is None:
            records = [
                {"iteration": i, "loss": 1 / i, "beta": float(i), "val_top1": 80 + seed + i / 40, "flips": 0.5 / i}
                | {"relaxed_val_top1": 81 + seed + i / 40, "entropy": 1 - i / 400}
                for i in (100, 200, 300, 400)
            ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        summary = {"method": method, "model": "lenet300", "dataset": "mnist", "stand_in": False, "seed": seed}
        summary |= {"parameters": 8192, "labelled": 8192, "bits": 1, "iterations": 400}
        (folder / "identity.json").write_text(json.dumps(summary))
        summary |= {"best_val_top1": 91.0, "test_top1": top1, "seconds": 20.0, "steps_per_second": 20.0, **fields}
        (folder / "summary.json").write_text(json.dumps(summary))
        if top1 is None:
            (folder / "summary.json").unlink()
        return folder

    return make_run


@pytest.fixture
def told():
    """Collects warnings: pass `told.append` where one is asked for."""
    return []


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "about:blank"),
]
START = """
import fcntl, os, sys
inlet, outlet = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])  # out of the way of 3 and 4
os.dup2(inlet, 3)
os.dup2(outlet, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium, driven by the DevTools protocol: JSON messages over the pipes 3 and 4, each ended by NUL."""

    TIMEOUT = 60.0

    def __init__(self, executable, profile):
        (inlet, self._write), (self._read, outlet) = os.pipe(), os.pipe()
        command = [sys.executable, "-c", START, str(inlet), str(outlet), executable, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(inlet, outlet),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inlet)
        os.close(outlet)
        self._buffer, self._count, self._session, self.events = b"", 0, None, []
        try:
            target = self("Target.createTarget", url="about:blank")["targetId"]
            self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self(f"{domain}.enable")
        except AssertionError:
            self.process.kill()
            raise

    def __call__(self, method, **parameters):
        """Send a command, give its result; events that arrive meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise AssertionError("the browser has gone") from None
        while (answer := self._message()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self):
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], self.TIMEOUT)[0], "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1200, height=900, dark=False):
        """Show a file in a window of this size; forgets the events before."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self("Page.navigate", url=path.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message())

    def js(self, expression):
        """The value of an expression in the page."""
        result = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def move(self, selector, across=0.5, down=0.5):
        """Move the mouse to a place in an element, as fractions of its box; gives the place."""
        self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.js(f"JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect())")
        box = json.loads(box)
        x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector):
        """Click the middle of an element."""
        x, y = self.move(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            code = {"Enter": 13, "Tab": 9, " ": 32}.get(key, 0)
            text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") and kind == "keyDown" else {}
            self("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def seen(self, *methods):
        """The events of these kinds since the page was opened."""
        self.js("new Promise(done => setTimeout(done, 50))")  # let the last of them arrive
        return [e["params"] for e in self.events if e["method"] in methods]

    def close(self):
        """End the browser."""
        try:
            self._session = None
            self("Browser.close")
            self.process.wait(timeout=20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.process.wait()
        os.close(self._write)
        os.close(self._read)
        time.sleep(0.1)  # its helpers let go of the profile


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser for the tests of a module; without one they are skipped."""
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("no Chromium is installed (found by name on the PATH, or named by $CHROMIUM)")
    try:
        browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    except AssertionError:
        if "CHROMIUM" in os.environ:
            raise
        pytest.skip(f"{executable} does not start")
    yield browser
    browser.close()
