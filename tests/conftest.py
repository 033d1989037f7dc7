"""What all tests share: an empty gin configuration, one thread (tests may run side by side), no W&B, quick starts."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import gin
import pytest
import torch


@pytest.fixture(autouse=True)
def _clean_slate(monkeypatch):
    gin.clear_config()
    torch.set_num_threads(1)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    yield
    gin.clear_config()


class Started:
    """A process of the warm Python; `wait` gives a `subprocess.CompletedProcess`."""

    def __init__(self, requests, words, cwd, environment):
        self.words = words
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 - until `wait`
        self.connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(requests, [b"\n"], [file.fileno() for file in (theirs, self.out, self.err)])
        asked = {"words": words, "cwd": str(cwd), "env": environment}
        self.connection.sendall(f"{json.dumps(asked)}\n".encode())
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())

    def poll(self):
        """Whether it has ended."""
        self.connection.setblocking(False)
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.connection.setblocking(True)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout=120):
        self.connection.settimeout(timeout)
        try:
            status = int(self.answers.readline())
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            raise
        said = []
        for file in (self.out, self.err):
            file.seek(0)
            said.append(file.read())
            file.close()
        self.answers.close()
        self.connection.close()
        return subprocess.CompletedProcess(self.words, status, *said)


class WarmPython:
    """Starts processes of the Python in `warm_python.py`, which itself is started when it is first needed."""

    def __init__(self):
        self.requests = None

    def start(self, *words, cwd=None, **environment):
        """`python WORDS`, without W&B, on one thread; `environment`: further variables, None takes one away."""
        if self.requests is None:
            self.requests, theirs = socket.socketpair()
            command = [sys.executable, str(Path(__file__).with_name("warm_python.py")), str(theirs.fileno())]
            quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
            with theirs:
                self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=quiet)
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", **environment}
        given = {name: value for name, value in variables.items() if value is not None}
        return Started(self.requests, list(map(str, words)), cwd or os.getcwd(), given)

    def run(self, *words, cwd=None, timeout=120, **environment):
        return self.start(*words, cwd=cwd, **environment).wait(timeout)

    def close(self):
        if self.requests is not None:
            self.requests.close()
            self.process.wait()


@pytest.fixture(scope="session")
def python():
    """`python.run("-m", "mrfquant", ...)` is `subprocess.run([sys.executable, ...])` without the seconds of imports."""
    warm = WarmPython()
    yield warm
    warm.close()
