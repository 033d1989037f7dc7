"""Running the cells of a table, some at a time, each in a process of its own; what is done stays done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mrfquant.reproduction.tables import Cell


@dataclass(frozen=True)
class Outcome:
    """How a cell with one seed ended: its test accuracy, or the last line of what it said."""

    cell: Cell
    seed: int
    accuracy: float | None
    message: str = ""


class Campaign:
    """Cells x seeds, each in its folder under `out`.

    Args:
        scale: 'paper' takes the configurations of gin/, 'small' those of gin/small/.
        jobs: cells at a time; they share the cores evenly.
        options: arguments handed on to every run, resumed or not. settings: bindings for every new run that leave its
            results as they are. smoke: stand-in data in every run.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        seeds: int,
        scale: str,
        out: Path,
        jobs: int = 1,
        options: Sequence[str] = (),
        settings: Sequence[str] = (),
        smoke: bool = False,
    ) -> None:
        self.cells, self.seeds, self.scale, self.out, self.jobs = cells, seeds, scale, out, jobs
        self.options, self.settings, self.smoke = options, settings, smoke
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def folder(self, cell: Cell, seed: int) -> Path:
        """Where the run of a cell with a seed lives; settings beyond the configuration are part of the name."""
        extra = "".join("-" + s.rpartition(".")[2].replace(" = ", "") for s in cell.settings)
        return self.out / (f"{self.scale}-smoke" if self.smoke else self.scale) / f"{cell.config}{extra}-seed{seed}"

    def accuracies(self) -> dict[Cell, list[float]]:
        """Test accuracies of the finished runs."""
        found: dict[Cell, list[float]] = {}
        for cell in self.cells:
            for seed in range(self.seeds):
                if (accuracy := self._accuracy(cell, seed)) is not None:
                    found.setdefault(cell, []).append(accuracy)
        return found

    def run(self) -> Iterator[Outcome]:
        """Run what is not done yet; gives each outcome as it comes. Closing the iterator stops the runs, saved."""
        todo = [(c, s) for s in range(self.seeds) for c in self.cells if self._accuracy(c, s) is None]
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._run, cell, seed) for cell, seed in todo]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                self._stop(pool.shutdown)

    def _stop(self, shutdown: Callable[..., None]) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)  # the run saves its state and ends
        shutdown(cancel_futures=True)

    def _run(self, cell: Cell, seed: int) -> Outcome:
        folder = self.folder(cell, seed)
        if (folder / "config.gin").exists():
            what = ["--resume", str(folder)]
        else:
            config = f"gin/{'small/' if self.scale == 'small' else ''}{cell.config}.gin"
            bindings = [word for setting in (*cell.settings, *self.settings) for word in ("--set", setting)]
            what = ["--gin", config, *bindings, "--seed", str(seed), "--out", str(folder)]
            what += ["--smoke"] if self.smoke else []
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        with self._lock:
            if self._stopping:
                return Outcome(cell, seed, None, "not started")
            process = subprocess.Popen(
                [sys.executable, "-m", "mrfquant", "run", *what, *self.options],
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # Ctrl-C reaches this process only, which then asks the runs to stop
            )
            self._running.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        lines = output.strip().splitlines()
        return Outcome(cell, seed, self._accuracy(cell, seed), lines[-1] if lines else "")

    def _accuracy(self, cell: Cell, seed: int) -> float | None:
        from mrfquant.storage.run_folder import RunFolder  # here, since it imports torch

        summary = RunFolder(self.folder(cell, seed)).summary()
        return summary and summary["test_top1"]
