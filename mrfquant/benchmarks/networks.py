"""A training step of PMF against one of the same network in plain PyTorch: time, and what is kept in memory."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from mrfquant.benchmarks.timing import in_turns, ratio
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.models import VGG, LeNet5, LeNet300, ResNet

LEVELS = {2: (-1, 1), 4: (-2, -1, 1, 2)}


def networks() -> dict[str, tuple[Callable[[], Any], tuple[int, ...], int]]:
    """Name -> (recipe, shape of a batch, steps per turn)."""
    mnist, cifar = (1, 28, 28), (3, 32, 32)
    return {
        "lenet300": (lambda: LeNet300(mnist, 10), (100, *mnist), 200),
        "lenet5": (lambda: LeNet5(mnist, 10), (100, *mnist), 10),
        "resnet18": (lambda: ResNet(cifar, 10), (128, *cifar), 1),
        "vgg16": (lambda: VGG(cifar, 10), (128, *cifar), 1),
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

    def tensors(self) -> list[Any]:
        """What is kept from step to step: parameters, gradients, optimizer state."""
        parameters = list(self.model.parameters())
        return [*parameters, *(p.grad for p in parameters), *_state(self.optimizer)]


class PMF(Float):
    """The same step with the weights on `d` levels."""

    def __init__(self, build: Callable[[], Any], shape: tuple[int, ...], d: int) -> None:
        self.d = d
        super().__init__(build, shape)

    def prepare(self, adam: Callable[..., Any]) -> None:
        self.solver = ProximalMeanField(Labelling(self.model, LEVELS[self.d]), adam)

    def update(self) -> None:
        self.solver.step()

    def tensors(self) -> list[Any]:
        kept = [*self.model.parameters(), self.solver.labelling.labelled.g, *self.solver.variables]
        return [*kept, *self.solver._planes.values(), *_state(self.solver.optimizer)]


def _state(optimizer: Any) -> list[Any]:
    return [t for state in optimizer.state.values() for t in state.values() if hasattr(t, "untyped_storage")]


def measure_steps(name: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a float step, and the ratio of PMF's to it: median, lowest and highest of the rounds."""
    build, shape, steps = networks()[name]
    sides = {"float": Float(build, shape)} | {f"d={d}": PMF(build, shape, d) for d in LEVELS}
    times = in_turns(sides, steps, rounds)
    found: dict[str, Any] = {"float_ms": 1000 * statistics.median(times["float"])}
    for side in list(sides)[1:]:
        found[side] = ratio(times[side], times["float"])
    return found


def measure_memory(name: str, rounds: int) -> dict[str, Any]:
    """Megabytes that stay from step to step in a float run, and the ratio of PMF's to them."""
    build, (_, *image), _ = networks()[name]

    def kept(side: Float) -> int:
        side()  # fills the gradients and the optimizer's state
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in side.tensors()}
        return sum(storages.values())

    plain = Float(build, (2, *image))
    plain.optimizer.zero_grad = lambda: None  # keep the gradients, to count them
    reference = kept(plain)
    ratios = {f"d={d}": {"ratio": kept(PMF(build, (2, *image), d)) / reference} for d in LEVELS}
    return {"float_MB": reference / 1e6, **ratios}
