"""The walk over a network that is being rounded: the float and the rounded network side by side, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.rounding.norm_statistics import Moments, NormStatistics, pairs
from mrfquant.rounding.replay import Replay
from mrfquant.rounding.scout import Step
from mrfquant.rounding.watch import Use, Watch

BatchNorm = nn.modules.batchnorm._BatchNorm
Found = tuple[Tensor, Tensor]  # labels in a weight's shape, scales in one that broadcasts with it


class Trained:
    """Tensors of a network as they were trained, of those that were changed."""

    def __init__(self) -> None:
        self._values: list[tuple[Tensor, Tensor]] = []

    def keep(self, tensor: Tensor) -> Tensor:
        """Remember a tensor before it is changed; returns the copy."""
        copy = tensor.detach().clone(memory_format=torch.preserve_format)
        self._values.append((tensor, copy))
        return copy

    def restore(self) -> None:
        """Undo every change."""
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network compute with them for a while."""
        present = [tensor.data for tensor, _ in self._values]
        try:
            for tensor, value in self._values:
                tensor.data = value
            yield
        finally:
            for (tensor, _), data in zip(self._values, present, strict=True):
                tensor.data = data

    def __len__(self) -> int:
        return len(self._values)


@dataclass
class Walk:
    """Rounds the weights of a network in place, in the order of their first uses.

    Attributes:
        replay: runs the network.
        weights: to round, by name.
        solve: gives the labels of a weight and their levels, (rows, n) both, and the scales (rows,), for its moments.
        float_targets: the outputs to reach are the float network's.
        norms: those whose statistics are to follow, by name.
        generator: draws pixels.
        trained: keeps what is changed.
    """

    replay: Replay
    weights: dict[str, Tensor]
    solve: Callable[[Moments], tuple[Tensor, Tensor, Tensor]]
    float_targets: bool
    norms: dict[str, BatchNorm]
    generator: torch.Generator
    trained: Trained = field(default_factory=Trained)

    def run(self) -> dict[str, Found]:
        """Labels and scales of every weight."""
        steps = self.replay.steps(self.weights, self.norms)
        used = {name for step in steps for name in step.names}
        for name in self.weights:
            if name not in used:
                raise BadInput(
                    f"no batch reaches {name} as the weight of a linear layer or a convolution: exclude it, or give "
                    "batches that use it"
                )
        answers: dict[str, Found] = {}
        pending = dict(self.weights)
        for step in steps:
            if not step.names:
                self._gather(step, pending, lambda *_: None)
                self.replay.carried(step.first // 2)
            elif step.names[0] in self.norms:
                if answers:
                    self._follow(step, pending)
            else:
                for moments in self._moments(step, pending):
                    del pending[moments.name]
                    answers[moments.name] = self._round(moments)
        return answers

    def _moments(self, step: Step, pending: Mapping[str, Tensor]) -> list[Moments]:
        """Of the weights of a step."""
        count = len(self.replay.batches)
        found = {name: Moments(name, self.weights[name], count, self.generator) for name in step.names}

        def add(exact: list[Use], present: list[Use]) -> None:
            for float_use, use in pairs(exact, present):
                found[use.name].add(float_use if self.float_targets else None, use)

        self._gather(step, pending, add)
        return list(found.values())

    def _round(self, moments: Moments) -> Found:
        """Put a weight on levels."""
        weight, form = self.weights[moments.name], moments.form
        labels, values, scales = self.solve(moments)
        self.trained.keep(weight)
        scale = form.scales(scales, weight.shape)
        weight.copy_(form.tensor(values, weight.shape) * scale)
        return form.tensor(labels, weight.shape), scale

    def _follow(self, step: Step, pending: Mapping[str, Tensor]) -> None:
        """Let the statistics of a norm follow its inputs."""
        norm = self.norms[step.names[0]]
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        statistics = NormStatistics(len(mean), mean.device)

        def add(exact: list[Use], present: list[Use]) -> None:
            for float_use, use in pairs(exact, present):
                statistics.add(float_use, use)

        self._gather(step, pending, add)
        statistics.transfer(norm, self.trained.keep(mean), self.trained.keep(variance))

    def _gather(self, step: Step, pending: Mapping[str, Tensor], add: Callable[[list[Use], list[Use]], None]) -> None:
        """Run both networks on every batch as far as a step needs, and give what is used on the way."""
        for index in range(len(self.replay.batches)):
            seen = []
            for as_float in (True, False):
                watch = Watch(pending, self.norms, step.names, step.uses, step.sums)
                with self.trained.in_place() if as_float else nullcontext():
                    self.replay.run(step, index, as_float, watch)
                seen.append(watch.uses)
            add(*seen)
