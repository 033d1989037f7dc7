"""A training step of PMF against one of the same network in plain PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from mrfquant.benchmarks.timing import Options, Row, in_turns, peer, ratios
from mrfquant.families import Form
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling, LevelSet, uniform
from mrfquant.models import VGG, LeNet5, LeNet300, ResNet

LEVELS: dict[int, Sequence[float] | LevelSet] = {
    2: (-1, 1),
    3: (-1, 0, 1),
    4: (-2, -1, 1, 2),
    8: uniform(3),
    16: uniform(4),
}
ON_PLANES = (3, 4)  # numbers of levels that are measured in this form, too
BITS = {"1 bit": 1, "ternary": 0, "2 bits": 2}  # PARQ's, and what it calls them
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
# Name -> (recipe, shape of a batch). The paper's batches on CIFAR are of 128 images: with a quarter of that the suite
# takes minutes, and what PMF adds to a step counts for more.
NETWORKS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "lenet300": (lambda: LeNet300(MNIST, 10), (100, *MNIST)),
    "lenet5": (lambda: LeNet5(MNIST, 10), (100, *MNIST)),
    "resnet18": (lambda width=1.0: ResNet(CIFAR, 10, width=width), (32, *CIFAR)),
    "vgg16": (lambda: VGG(CIFAR, 10), (32, *CIFAR)),
}


class Float:
    """A step in plain PyTorch: the network's own parameters, fused Adam."""

    def __init__(self, build: Callable[[], Any], shape: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.images, self.labels = torch.randn(shape), torch.randint(10, shape[:1])
        self.model = build()
        self.prepare(functools.partial(torch.optim.Adam, lr=1e-3, fused=True))

    def prepare(self, adam: Callable[..., Any]) -> None:
        self.optimizer = adam(self.model.parameters())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __call__(self) -> None:
        functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.update()


class PMF(Float):
    """A training step with the weights on `d` levels; `settings` are the solver's."""

    def __init__(
        self, build: Callable[[], Any], shape: tuple[int, ...], d: int, form: Form = "line", **settings: Any
    ) -> None:
        self.levels, self.settings = LEVELS[d], {"form": form, **settings}
        super().__init__(build, shape)

    def prepare(self, adam: Callable[..., Any]) -> None:
        self.solver = ProximalMeanField(Labelling(self.model, self.levels), adam, **self.settings)

    def update(self) -> None:
        self.solver.step()


class PARQ(Float):
    """A training step by torchao's PARQ with its defaults, tensors of two or more dimensions at so many bits."""

    def __init__(self, build: Callable[[], Any], shape: tuple[int, ...], parq: Any, bits: int) -> None:
        self.parq, self.bits = parq, bits
        super().__init__(build, shape)

    def prepare(self, adam: Callable[..., Any]) -> None:
        weights = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        base = adam([{"params": weights, "quant_bits": self.bits}, {"params": others}])
        self.optimizer = self.parq.QuantOptimizer(base, self.parq.LSBQuantizer(), self.parq.ProxHardQuant())


def _quantized(build: Callable[[], Any], shape: tuple[int, ...]) -> dict[str, Float]:
    """Yield PMF with every number of levels on the line, and with some of them on planes."""
    sides: dict[str, Float] = {f"d={d}": PMF(build, shape, d) for d in LEVELS}
    return sides | {f"d={d}, planes": PMF(build, shape, d, "planes") for d in ON_PLANES}


def measure_steps(options: Options) -> Iterator[tuple[str, Row]]:
    """Measure milliseconds of a float step, and other steps as ratios to it."""
    parq = peer("torchao.prototype.parq", "torchao") if options.peers else None
    for name in options.models:
        build, shape = NETWORKS[name]
        sides = {"float": Float(build, shape), **_quantized(build, shape)}
        if parq and name.startswith("lenet"):  # on large networks the step is the network's, whatever quantizes it
            sides |= {f"PARQ, {called}": PARQ(build, shape, parq, bits) for called, bits in BITS.items()}
        yield name, ratios(in_turns(sides, options))
