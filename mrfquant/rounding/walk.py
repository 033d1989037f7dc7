"""The walk over a network that is being rounded: the float and the rounded network side by side, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.rounding.answers import Found, Journal, LayerReport
from mrfquant.rounding.moments import Moments, NormStatistics, pairs
from mrfquant.rounding.replay import Replay
from mrfquant.rounding.scout import Step
from mrfquant.rounding.watch import Use, Watch

BatchNorm = nn.modules.batchnorm._BatchNorm


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
        levels: of the weights.
        solve: finds the labels of a weight, given its moments.
        journal: keeps what was found, and knows what an earlier walk has found.
        report: called when a weight is rounded.
        float_targets: the outputs to reach are the float network's.
        norms: those whose statistics are to follow, by name.
        generator: draws pixels.
        trained: keeps what is changed.
    """

    replay: Replay
    weights: dict[str, Tensor]
    levels: Mapping[str, LevelSet]
    solve: Callable[[Moments], tuple[Found, LayerReport]]
    journal: Journal
    report: Callable[[LayerReport], None]
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
                for name, answer in self._answers(step, pending):
                    del pending[name]
                    self.trained.keep(self.weights[name])
                    self.weights[name].copy_(answer.values(self.levels[name]))
                    answers[name] = answer
        return answers

    def _answers(self, step: Step, pending: Mapping[str, Tensor]) -> Iterator[tuple[str, Found]]:
        """Of the weights of a step."""
        known = {name: self.journal.read(name) for name in step.names}
        missing = [name for name, entry in known.items() if entry is None]
        moments = self._moments(step, pending) if missing else {}
        for name in step.names:
            entry = known[name]
            if entry is None:
                answer, layer = self.solve(moments[name])
                self.journal.write(name, answer, layer, self.generator.get_state())
            else:
                answer, layer, state = entry
                self.generator.set_state(state)
            self.report(layer)
            yield name, answer

    def _moments(self, step: Step, pending: Mapping[str, Tensor]) -> dict[str, Moments]:
        """Of the weights of a step."""
        count = len(self.replay.batches)
        found = {name: Moments(name, self.weights[name], count, self.generator) for name in step.names}

        def add(exact: list[Use], present: list[Use]) -> None:
            for float_use, use in pairs(exact, present):
                found[use.name].add(float_use if self.float_targets else None, use)

        self._gather(step, pending, add)
        return found

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
