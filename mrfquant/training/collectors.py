"""Where the figures of a run go. A collector may print, write or send them; it never changes them."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from mrfquant.metric import TOP1, Metric
from mrfquant.storage.files import write_text
from mrfquant.storage.run_folder import RunFolder, read_records
from mrfquant.text import duration, silence

Values = Mapping[str, float]


class Collector:
    """The interface: override what you need, and name it in gin as `Experiment.collectors = [@MyCollector()]`.

    Attributes:
        metric: the one that chooses the best network; the trainer sets it before `start`.
        unit: what an example is called; likewise.
        batch_size: examples of a step; likewise.
    """

    metric: Metric = TOP1
    unit: str = "examples"
    batch_size: int = 1

    def open(self, folder: RunFolder) -> None:
        """Prepare for a run in `folder`, before the loop starts: `identity()` says what is run, `path` takes files."""

    def start(self, iteration: int, iterations: int) -> None:
        """Note that the loop starts at `iteration` (not 0 when the run was resumed) and will end at `iterations`."""

    def step(self, iteration: int) -> None:
        """Note that an iteration is done. Called in the training loop: keep it cheap, touch no tensor."""

    def record(self, iteration: int, values: Values) -> None:
        """Take figures as of `iteration`: loss, learning_rate, steps_per_second; at evaluations val_<metric>, too."""

    def say(self, text: str) -> None:
        """Show a line for people, from the loop or from a hook."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Note that the run has ended, with its summary, or with None when it was interrupted or failed."""


class JsonLines(Collector):
    """One JSON object a line, in the order recorded; a line is whole or, after a crash, the last and dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def start(self, iteration: int, iterations: int) -> None:
        # A resumed run records again what came after its checkpoint.
        kept = [json.dumps(r) + "\n" for r in read_records(self.path) if r["iteration"] <= iteration]
        write_text(self.path, "".join(kept))
        self._file = open(self.path, "a")  # noqa: SIM115 - stays open for the run

    def record(self, iteration: int, values: Values) -> None:
        assert self._file is not None
        self._file.write(json.dumps({"iteration": iteration, **values}) + "\n")
        self._file.flush()

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if self._file:
            self._file.close()


class Console(Collector):
    """A live progress bar on a terminal, plain lines elsewhere; the lines also go to `log`, the run's log.txt."""

    HEARTBEAT = 30.0  # seconds after which a plain log shows a sign of life

    def __init__(self, log: Path, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self._log = open(log, "a", errors="backslashreplace")  # noqa: SIM115 - stays open for the run
        self._bar: tqdm | None = None
        self._shown: dict[str, float] = {}
        self._spoke = time.monotonic()

    def say(self, text: str) -> None:
        """Show a line for people."""
        try:
            if self._bar is not None:
                self._bar.write(text, file=self.stream)
            else:
                encoding = self.stream.encoding or "utf-8"  # a path may have bytes that are no text in it
                print(text.encode(encoding, "backslashreplace").decode(encoding), file=self.stream, flush=True)
        except BrokenPipeError:  # nobody reads along any more, as in `run | head`: the run goes on, the log has it all
            silence(self.stream)
        with contextlib.suppress(OSError):  # a full disk: the checkpoints tell, and their sentence must get through
            self._log.write(text + "\n")
            self._log.flush()
        self._spoke = time.monotonic()

    def start(self, iteration: int, iterations: int) -> None:
        self._iterations, self._first, self._started = iterations, iteration, time.monotonic()
        if self.stream.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = tqdm(
                initial=iteration,
                total=iterations,
                file=self.stream,
                unit="step",
                dynamic_ncols=True,
                bar_format="{percentage:3.0f}% {bar:16} {n_fmt}/{total_fmt}{postfix}  {rate_fmt}  {remaining} left",
            )

    def step(self, iteration: int) -> None:
        if self._bar is not None:
            self._bar.update()
        elif time.monotonic() - self._spoke > self.HEARTBEAT:
            self.say(self._line(iteration, self._shown))

    def record(self, iteration: int, values: Values) -> None:
        self._shown.update(values)
        if self._bar is not None:
            shown = {n: v for n, v in self._shown.items() if n not in ("entropy", "steps_per_second")}
            self._bar.set_postfix_str(self._figures(shown), refresh=False)
        if f"val_{self.metric.name}" in values:
            self.say(self._line(iteration, values))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Close the log file."""
        with contextlib.suppress(OSError):
            self._log.close()

    def _line(self, iteration: int, values: Values) -> str:
        width = len(f"{self._iterations:,}")
        line = f"{iteration:>{width},}/{self._iterations:,}  {self._figures(values)}"
        done = iteration - self._first
        if done and iteration < self._iterations:
            left = (time.monotonic() - self._started) / done * (self._iterations - iteration)
            line += f"  {duration(left)} left"
        return line

    def _figures(self, values: Values) -> str:
        formats = {"loss": "loss {:.4f}", f"val_{self.metric.name}": "", **FORMATS}
        shown = ((name, form, values[name]) for name, form in formats.items() if name in values)
        words = [form.format(v) if form else f"val {self.metric.text(v)}" for _, form, v in shown]
        if "steps_per_second" in values:
            speed = values["steps_per_second"] * self.batch_size
            words.append(f"{speed:,.{0 if speed >= 100 else 1}f} {self.unit}/s")
        return "  ".join(words)


FORMATS = {"entropy": "entropy {:.3f} bits", "learning_rate": "lr {:.3g}", "beta": "beta {:.4g}"}
