"""Running the cells of a table, some at a time, each in a process of its own; what is done stays done."""

import itertools
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mrfquant.compute import background
from mrfquant.errors import BadInput, RunFailed
from mrfquant.metric import Metric
from mrfquant.reproduction.tables import Cell
from mrfquant.storage.run_folder import RunFolder
from mrfquant.training import Interrupted
from mrfquant.training.launch import launch


@dataclass(frozen=True)
class Outcome:
    """How a cell with one seed ended: its accuracy, or the last line that it said; or another process has it."""

    cell: Cell
    seed: int
    accuracy: float | None
    message: str = ""
    elsewhere: bool = False


@dataclass
class Campaign:
    """Cells x seeds, each in its folder under `out`.

    Attributes:
        scale: one of `SCALES`; all but the first take the configurations of the folder of that name in gin/.
        jobs: cells at a time; they share the cores evenly.
        options: of `launch` for every run, resumed or not: device, data, wandb.
        settings: bindings for every new run that leave its results as they are.
        smoke: stand-in data in every run.
    """

    cells: Sequence[Cell]
    seeds: int
    scale: str
    out: Path
    jobs: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    smoke: bool = False

    def __post_init__(self) -> None:
        self._running: set[BaseProcess] = set()
        self._lock, self._stopping = threading.Lock(), False

    def folder(self, cell: Cell, seed: int) -> Path:
        """Return where the run of a cell with a seed lives; settings beyond the configuration are part of the name."""
        extra = "".join("-" + re.sub(r"[^\w.,-]", "", s.partition(".")[2]) for s in cell.settings)
        return self.out / (f"{self.scale}-smoke" if self.smoke else self.scale) / f"{cell.config}{extra}-seed{seed}"

    def accuracies(self) -> dict[Cell, list[float]]:
        """Return test accuracies by seed, also of more seeds than were asked for, up to the first missing."""
        found: dict[Cell, list[float]] = {}
        for cell in self.cells:
            for seed in itertools.count():
                if (accuracy := self._accuracy(cell, seed)) is not None:
                    found.setdefault(cell, []).append(accuracy)
                elif seed >= self.seeds:
                    break
        return found

    def missing(self) -> list[tuple[Cell, int]]:
        """Return the runs that are not done yet: cells with a seed."""
        return [(c, s) for s in range(self.seeds) for c in self.cells if self._accuracy(c, s) is None]

    def run(self) -> Iterator[Outcome]:
        """Run what is not done yet; gives each outcome as it comes. Closing the iterator stops the runs, saved."""
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._run, cell, seed) for cell, seed in self.missing()]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                self._stop(pool.shutdown)

    def _stop(self, shutdown: Callable[..., None]) -> None:
        with self._lock:
            self._stopping = True
            for process in self._running:
                process.terminate()  # the run saves its state and ends
        shutdown(cancel_futures=True)

    def _run(self, cell: Cell, seed: int) -> Outcome:
        folder = self.folder(cell, seed)
        arguments = {
            "config": f"gin/{cell.file(self.scale)}",
            "bindings": [*cell.settings, *self.settings],
            "seed": seed,
            "smoke": self.smoke,
            "out": folder,
            **self.options,
        }
        with tempfile.NamedTemporaryFile() as log:
            with self._lock:
                if self._stopping:
                    return Outcome(cell, seed, None, "not started")
                process = background(run_cell, arguments, log=Path(log.name), jobs=self.jobs)
                self._running.add(process)
            process.join()
            with self._lock:
                self._running.discard(process)
            lines = Path(log.name).read_text(errors="replace").strip().splitlines()
        accuracy = self._accuracy(cell, seed)
        elsewhere = accuracy is None and RunFolder(folder).busy()
        return Outcome(cell, seed, accuracy, lines[-1] if lines else "", elsewhere)

    def _accuracy(self, cell: Cell, seed: int) -> float | None:
        summary = RunFolder(self.folder(cell, seed)).summary()
        return None if summary is None else summary[f"test_{Metric.of(summary).name}"]


def run_cell(arguments: Mapping[str, Any]) -> int:
    """Run a cell, or continue it, in a process of its own; the last line that it prints says what went wrong."""
    try:
        launch(**arguments, resume=True)
    except (BadInput, RunFailed) as error:
        print(error)
        return 1
    except Interrupted as stopped:
        return 128 + stopped.signal
    return 0
