"""A whole run, with batches, evaluations, checkpoints and records, against its bare steps on one batch."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from mrfquant.benchmarks.networks import LEVELS, MNIST, NETWORKS, PMF, Float
from mrfquant.benchmarks.timing import Options, Row, ratio
from mrfquant.data.images import Images, Split
from mrfquant.inference import ProximalMeanField, Reference
from mrfquant.labelling import Labelling
from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.training import Collector, Interrupted, JsonLines, Trainer

INTERVAL = 500  # iterations between evaluations, as in gin/base/mnist.gin
SIZES = (50_000, 10_000, 10_000)  # images, as in MNIST


class Turns(Collector):
    """Each time the run has evaluated, so much of the bare loop; the seconds of both."""

    def __init__(self, bare: Callable[[], None], options: Options) -> None:
        self.bare, self.now, self.end = bare, options.now, time.perf_counter() + options.seconds
        self.times: dict[str, list[float]] = {"bare loop": [], "whole run": []}
        self._mark: float | None = None

    def record(self, iteration: int, values: Any) -> None:
        if "val_top1" not in values:
            return
        now = self.now()
        if self._mark is not None:  # the first time warms up
            self.times["whole run"].append(now - self._mark)
        start = self.now()
        for _ in range(INTERVAL):
            self.bare()
        if self._mark is not None:
            self.times["bare loop"].append(self.now() - start)
        self._mark = self.now()

    def done(self) -> bool:
        """Return whether the time is over."""
        return len(self.times["bare loop"]) >= Options.LEAST and time.perf_counter() > self.end


def measure_whole_run(options: Options) -> Iterator[tuple[str, Row]]:
    """Time a bare step of LeNet-300, and an iteration of the whole run as a ratio to it."""
    random = torch.Generator().manual_seed(0)
    train, val, test = (
        Split(
            torch.randint(256, (n, *MNIST), dtype=torch.uint8, generator=random),
            torch.randint(10, (n,), generator=random),
        )
        for n in SIZES
    )
    dataset = Images("random", train, val, test, (0.5,), (0.25,), classes=tuple("0123456789"), augment=None)
    build, shape = NETWORKS["lenet300"]
    for name, bare in (("float", Float(build, shape)), ("PMF, d=2", PMF(build, shape, 2))):
        torch.manual_seed(0)
        model = build()
        adam = lambda p: torch.optim.Adam(p, lr=1e-3, fused=True)  # noqa: E731
        labelling = Labelling(model, LEVELS[2] if isinstance(bare, PMF) else None)
        inference = (ProximalMeanField if isinstance(bare, PMF) else Reference)(labelling, adam)
        turns = Turns(bare, options)
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(model, dataset, inference, iterations=10**9, eval_interval=INTERVAL)
            collectors = [JsonLines(Path(folder) / "metrics.jsonl"), turns]
            try:
                trainer.run(Checkpoints(Path(folder)), collectors, turns.done)
            except Interrupted:
                pass
            finally:
                for collector in collectors:
                    collector.finish(None)
        times = turns.times
        step = sorted(times["bare loop"])[len(times["bare loop"]) // 2] / INTERVAL
        yield name, {"bare loop, ms": 1000 * step, "whole run": ratio(times["whole run"], times["bare loop"])}
