"""toulbar2, a solver of cost function networks that proves what it finds, on a field, in a process of its own.

It computes with whole numbers: each table is shifted to a least cost of 0, multiplied by a number so large that all
costs together stay below 2^50, and rounded. So a bound of toulbar2's less half a unit for each factor holds.
"""

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput
from mrfquant.mrf.contradiction import contradiction
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solver import LabellingSolver

LARGEST_SUM = 2.0**50  # of costs
MAX_ENTRIES = 10**7  # table entries that toulbar2 is given: it has a Python object of each for a moment
LAST_SECONDS = 0.3  # from the signal to end to the end
WAIT = 0.02  # seconds between two looks at the process


def available() -> bool:
    """Return whether toulbar2 is installed."""
    return find_spec("pytoulbar2") is not None


@configurable(supplied=["graph", "seed", "start"])
class Toulbar2(LabellingSolver):
    """Branch and bound with soft arc consistency (Hurley et al., 2016; pytoulbar2): the extra `exact` installs it."""

    compiled = False

    def __init__(self, graph: FactorGraph, seed: int = 0, start: Tensor | None = None) -> None:
        super().__init__(graph, seed, start)
        if not available():
            raise BadInput("toulbar2 is not installed: pip install 'mrfquant[exact]'")
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def step(self) -> float:
        """Search until the search is complete, or until the time is over."""
        self.begin()
        while self.look():
            time.sleep(WAIT)
        return 0.0

    def begin(self) -> None:
        """Start the search beside whatever else is done; labellings have to be better than the best so far."""
        self._folder = tempfile.TemporaryDirectory()
        path, self._answer = (Path(self._folder.name) / name for name in ("field.npz", "answer.json"))
        np.savez(path, **self._whole_numbers())  # type: ignore[arg-type]
        words = [sys.executable, str(Path(__file__).with_name("toulbar2_process.py")), str(path)]
        with open(self._answer, "w") as answer:
            self._process = subprocess.Popen(words, stdout=answer, stderr=subprocess.DEVNULL)
        self._asked = False

    def look(self) -> bool:
        """Take what the search has found if it has ended; return whether it goes on."""
        process, now = self._process, time.perf_counter()
        if process is None:
            return False
        if process.poll() is None:
            if not self._asked and now > self.deadline - LAST_SECONDS:
                process.send_signal(signal.SIGVTALRM)
                self._asked = True
            if now <= self.deadline:
                return True
        else:
            self._take(self._answer.read_text())
        self.close()
        return False

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _take(self, printed: str) -> None:
        """Read the result; a process that was killed has none."""
        if not printed.strip():
            return
        found = json.loads(printed)
        if found["labels"] is not None:
            self.offer(torch.tensor(found["labels"], device=self.graph.device))
        if found["bound"] == math.inf:
            raise contradiction()
        bound = float((found["bound"] - self._factors / 2) / self._scale + self._shift)
        self._bound = max(self._bound, min(bound, self.energy))

    def _whole_numbers(self) -> dict[str, np.ndarray]:
        """Return the arrays that the process reads."""
        scopes, costs, spread = [], [], 0.0
        self._shift = -self.graph.constant
        for group in self.graph.groups:
            tables = group.stored.detach().cpu().double()
            cost = -tables.reshape(-1, tables.shape[-1]).t().numpy()
            least = cost.min(1, keepdims=True)
            cost = cost - least
            times = len(group) / len(cost)
            self._shift += times * least.sum()
            spread += times * np.where(np.isinf(cost), 0, cost).max(1).sum()
            scopes.append(group.scopes.cpu().numpy())
            costs.append(cost)
        self._scale, self._factors = LARGEST_SUM / max(spread, 1.0), sum(map(len, scopes))
        arrays = {f"scopes_{i}": scope for i, scope in enumerate(scopes)}
        arrays |= {f"costs_{i}": np.round(self._scale * cost) for i, cost in enumerate(costs)}
        upper = math.ceil(self._scale * (self.energy - self._shift)) if math.isfinite(self.energy) else math.inf
        arrays |= {"cards": self.graph.cardinalities.cpu().numpy(), "upper": np.array(float(upper))}
        return arrays | {"groups": np.array(len(scopes))}
