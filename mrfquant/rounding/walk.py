"""Round a network layer by layer, running the float and the partly rounded network side by side."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.rounding.answers import AnyRounded, Journal, LayerReport
from mrfquant.rounding.layer_statistics import LayerStatistics, NormStatistics
from mrfquant.rounding.replay import CalibrationStep, Replay
from mrfquant.rounding.watch import Use, Watch

BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass
class Walk:
    """Rounds the weights of a network in place, in the order of their first use."""

    replay: Replay
    weights: Mapping[str, Tensor]
    levels: Mapping[str, LevelSet]
    solve: Callable[[LayerStatistics], tuple[AnyRounded, LayerReport]]
    journal: Journal  # stores results, and returns those of an interrupted call
    report: Callable[[LayerReport], None]
    generator: torch.Generator  # draws pixels
    unreached: bool = False  # also round weights that no batch reaches
    trained: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what was changed, and copies of it as trained

    def __post_init__(self) -> None:
        named = self.replay.model.named_modules()
        norms = {name: module for name, module in named if isinstance(module, BatchNorm)}
        self.norms = {name: norm for name, norm in norms.items() if norm.running_mean is not None}  # to recalibrate

    def keep(self, tensor: Tensor) -> Tensor:
        """Copy a tensor that is about to be changed, and return the copy."""
        copy = tensor.detach().clone(memory_format=torch.preserve_format)
        self.trained.append((tensor, copy))
        return copy

    @contextmanager
    def _as_trained(self) -> Iterator[None]:
        """Let the network compute with the trained values."""
        present = [tensor.data for tensor, _ in self.trained]
        try:
            for tensor, value in self.trained:
                tensor.data = value
            yield
        finally:
            for (tensor, _), data in zip(self.trained, present, strict=True):
                tensor.data = data

    def run(self) -> dict[str, AnyRounded]:
        """Round every weight and return the results by name; if that fails, leave the network as it was."""
        modes = {module: module.training for module in self.replay.model.modules()}
        self.replay.model.eval()
        try:
            return self._round()
        except BaseException:
            for tensor, value in self.trained:
                tensor.copy_(value)
            raise
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _round(self) -> dict[str, AnyRounded]:
        """Take the steps in the order of their first uses."""
        steps = self.replay.steps(self.weights, self.norms)
        used = {name for step in steps for name in step.names}
        if unused := [name for name in self.weights if name not in used]:
            if not self.unreached:
                told = f"no batch reaches {unused[0]} as the weight of a linear layer or a convolution"
                raise BadInput(f"{told}: exclude it, or give batches that use it")
            steps.append(CalibrationStep(unused, 0, 2 * len(self.replay.units) + 1))
        answers: dict[str, AnyRounded] = {}
        pending = dict(self.weights)
        for step in steps:
            if not step.names:
                list(self._run_both(step, pending))  # stores the outputs of a unit
                self.replay.drop_outputs_before(step.first // 2)
            elif step.names[0] in self.norms:
                if answers:
                    self._recalibrate(step, pending)
            else:
                for name, answer in self._rounded_weights(step, pending):
                    del pending[name]
                    self.keep(self.weights[name])
                    self.weights[name].copy_(answer.values(self.levels[name]))
                    answers[name] = answer
        return answers

    def _rounded_weights(
        self, step: CalibrationStep, pending: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, AnyRounded]]:
        """Yield (name, rounded weight) for each weight of a calibration step."""
        known = {name: self.journal.read(name) for name in step.names}
        statistics = self._collect_statistics(step, pending) if None in known.values() else {}
        for name, entry in known.items():
            if entry is None:
                answer, layer = self.solve(statistics[name])
                self.journal.write(name, answer, layer, self.generator.get_state())
            else:
                answer, layer, state = entry
                self.generator.set_state(state)
            self.report(layer)
            yield name, answer

    def _collect_statistics(self, step: CalibrationStep, pending: Mapping[str, Tensor]) -> dict[str, LayerStatistics]:
        """Collect statistics for a step's weights."""
        count = len(self.replay.batches)
        found = {name: LayerStatistics(name, self.weights[name], count, self.generator) for name in step.names}
        for float_use, use in self._run_both(step, pending):
            found[use.name].add(float_use, use)
        return found

    def _recalibrate(self, step: CalibrationStep, pending: Mapping[str, Tensor]) -> None:
        """Change the statistics of a batch norm as rounding has changed its inputs."""
        norm = self.norms[step.names[0]]
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        statistics = NormStatistics(len(mean), mean.device)
        for float_use, use in self._run_both(step, pending):
            statistics.add(float_use, use)
        statistics.transfer(norm, self.keep(mean), self.keep(variance))

    def _run_both(self, step: CalibrationStep, pending: Mapping[str, Tensor]) -> Iterator[tuple[Use | None, Use]]:
        """Run both networks on every batch as far as a step needs, and yield their uses as `_matched` does."""
        for index in range(len(self.replay.batches)):
            seen = []
            for as_float in (True, False):
                watch = Watch(pending, self.norms, step.names, step.uses, step.sums)
                with self._as_trained() if as_float else nullcontext():
                    self.replay.run(step, index, as_float, watch)
                seen.append(watch.uses)
            yield from _matched(*seen)


def _matched(exact: list[Use], present: list[Use]) -> Iterator[tuple[Use | None, Use]]:
    """Yield the uses by the rounded network, each with that of the float one, or None where that has other inputs."""
    for number, use in enumerate(present):
        alike = len(exact) == len(present) and exact[number].inputs.shape == use.inputs.shape
        yield (exact[number] if alike and not use.routed else None), use
