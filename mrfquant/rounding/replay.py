"""Run a network repeatedly up to some layer, without repeating the blocks before it.

The units of a network are those blocks (elements of its Sequentials and ModuleLists) that every forward pass calls
once. Their outputs are stored: a pass that needs a layer of unit i starts from the stored outputs of the units before
it and ends where unit i + 1 begins. Older outputs are kept only if something else than the next unit reads them.
Without units, forward passes are complete.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrfquant.errors import BadInput
from mrfquant.rounding.products import Product
from mrfquant.rounding.watch import StopForward, Use, Watch

Forward = Callable[[nn.Module, Any], Any]


@dataclass
class CalibrationStep:
    """Weights calibrated together. Positions in a forward pass: 2i + 1 inside unit i, 2i before it."""

    names: list[str]  # weights with the same inputs, or one norm; empty where the outputs of a unit are stored
    first: int  # position of the first use
    last: int  # position of the last use
    uses: int | None = None  # number of uses in every forward pass, if it is constant: the pass can end after them
    sums: bool = False  # the pass has to go on until their outputs have been added to something


@dataclass
class _Usage:
    """Uses of a weight or norm."""

    first: int  # positions
    last: int
    uses: list[int] = field(default_factory=list)  # number in each batch
    added: int = 0  # how many outputs are added to something
    routed: bool = False
    like: str | None = None  # the weight used before on the same inputs


class StepFinder(Watch):
    """Finds the calibration steps, and the units in `read`, whose outputs are read by others than the next unit.

    `place` returns the present position in the forward pass.
    """

    def __init__(self, weights: Mapping[str, Tensor], norms: Mapping[str, nn.Module], place: Callable[[], int]) -> None:
        super().__init__(weights, norms)
        self.read: set[int] = set()
        self._weights, self._place = weights, place
        self._known: dict[str, _Usage] = {}
        self._last: tuple[str, Tensor] | None = None  # the weight that was used last, and its inputs
        self._batches = 0

    def used(self, name: str, product: Product | None, inputs: Tensor, routed: bool) -> Use:
        place = self._place()
        if name not in self._known:
            same = self._last is not None and self._last[1] is inputs and name in self._weights
            self._known[name] = _Usage(place, place, like=self._last[0] if same and self._last else None)
        known = self._known[name]
        known.first, known.last = min(known.first, place), max(known.last, place)
        self._last = (name, inputs) if name in self._weights else None
        self.uses.append(Use(name, None, inputs.new_empty(0), routed))
        return self.uses[-1]

    def unit_read(self, unit: int) -> None:
        if unit != self._place() // 2 - 1:
            self.read.add(unit)

    def end_of_batch(self) -> None:
        """Count the uses of a batch."""
        for name, known in self._known.items():
            uses = [use for use in self.uses if use.name == name]
            known.uses.append(len(uses))
            known.added += sum(use.added for use in uses)
            known.routed |= any(use.routed for use in uses)
        self._batches += 1
        self.uses.clear()
        self._last = None

    def steps(self) -> list[CalibrationStep]:
        """Return the steps in the order of their first uses."""
        steps: dict[str, CalibrationStep] = {}
        for name, known in self._known.items():
            regular = known.added in (0, sum(known.uses)) and known.uses == known.uses[:1] * self._batches
            count = known.uses[0] if regular and not known.routed else None
            before = steps.get(known.like or "")
            if before and before.uses and count and not known.added and not before.sums:
                before.names.append(name)
                before.first, before.last = min(before.first, known.first), max(before.last, known.last)
                before.uses += count
                steps[name] = before
            else:
                steps[name] = CalibrationStep([name], known.first, known.last, count, known.added > 0)
        return list({id(step): step for step in steps.values()}.values())


class _Irregular(Exception):
    """A unit is not called exactly once, in its order."""


@dataclass
class Replay:
    """Forward passes of a network on some batches."""

    model: nn.Module
    forward: Forward  # computes a batch
    batches: Sequence[Any]
    seed: int = 0  # of each pass, so that the float and the rounded network draw the same numbers
    rounded: Sequence[Any] = ()  # what the rounded network gets in place of the batches; empty: the same
    units: list[nn.Module] = field(default_factory=list)  # in the order of their calls

    def __post_init__(self) -> None:
        self._read: set[int] = set()  # units whose outputs others than the next one read
        self._outputs: dict[int, dict[tuple[int, bool], Any]] = {}  # unit: (batch, of the float network): output
        self._place, self._begin, self._end = 0, 0, 0
        self._batch, self._watch, self._storing = (0, True), Watch({}), False

    def steps(self, weights: Mapping[str, Tensor], norms: Mapping[str, nn.Module]) -> list[CalibrationStep]:
        """Find the units and the calibration steps, in the order of the first uses."""
        self.units = self._called_once()
        try:
            found = self._find_steps(weights, norms)
        except _Irregular:
            self.units = []
            found = self._find_steps(weights, norms)
        steps = [*found, *(CalibrationStep([], 2 * unit + 1, 2 * unit + 1) for unit in range(len(self.units)))]
        return sorted(steps, key=lambda step: step.first)  # stable: a unit's outputs after what is in it

    def run(self, step: CalibrationStep, index: int, as_float: bool, watch: Watch) -> None:
        """Compute a batch as far as a step needs it."""
        with self._wrapped():
            self._storing = not step.names
            try:
                self._run(index, as_float, step.first // 2, step.last, watch)
            except _Irregular:
                told = "the rounded network calls its blocks in another order than the float one"
                raise BadInput(f"{told}: exclude the layers that decide about it") from None

    def drop_outputs_before(self, unit: int) -> None:
        """Free the outputs of the unit before a stored one, unless others read them."""
        for key, output in self._outputs.get(unit - 1, {}).items():
            if unit - 1 not in self._read:  # what is left has the same shape and takes no memory
                empty = tree_map_only(Tensor, lambda t: t.new_zeros(()).expand(t.shape), output)
                self._outputs[unit - 1][key] = empty

    def _run(self, index: int, as_float: bool, begin: int, end: int, watch: Watch) -> None:
        self._batch, self._watch = (index, as_float), watch
        self._place, self._begin, self._end = 0, begin, end
        torch.manual_seed(self.seed + index)
        try:
            with watch:
                self.forward(self.model, (self.batches if as_float or not self.rounded else self.rounded)[index])
        except StopForward:
            pass
        finally:
            self._watch = Watch({})

    def _find_steps(self, weights: Mapping[str, Tensor], norms: Mapping[str, nn.Module]) -> list[CalibrationStep]:
        """Find the steps on all batches, with the present units."""
        scout = StepFinder(weights, norms, lambda: self._place)
        with self._wrapped():
            for index in range(len(self.batches)):
                self._run(index, True, 0, 2 * len(self.units) + 1, scout)
                if self._place != 2 * len(self.units):
                    raise _Irregular
                scout.end_of_batch()
        self._read = scout.read
        return scout.steps()

    def _called_once(self) -> list[nn.Module]:
        """Return the blocks that the first batch calls once, none inside another, in the order of their calls."""
        blocks = list(_blocks(self.model, isinstance(self.model, (nn.Sequential, nn.ModuleList))))
        calls: list[nn.Module] = []
        within: list[nn.Module] = []
        nested: set[nn.Module] = set()

        def enter(block: nn.Module, *_: Any) -> None:
            calls.append(block)
            nested.update([block] if within else [])
            within.append(block)

        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(enter).remove)
                stack.callback(block.register_forward_hook(lambda *_: within.pop() and None).remove)
            self.forward(self.model, self.batches[0])
        return [block for block in calls if calls.count(block) == 1 and block not in nested]

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Let `_call` handle the calls of units."""
        own = [vars(unit).get("forward") for unit in self.units]
        try:
            for number, unit in enumerate(self.units):
                unit.forward = functools.partial(self._call, number, unit.forward)
            yield
        finally:
            for unit, forward in zip(self.units, own, strict=True):
                vars(unit).pop("forward", None)
                if forward is not None:
                    unit.forward = forward

    def _call(self, unit: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the output of a unit: a stored one, or a new one, which may be stored."""
        if self._place != 2 * unit or self._watch.routed((args, kwargs)):
            raise _Irregular
        self._place = 2 * unit + 1
        if self._place > self._end:
            raise StopForward
        if unit < self._begin:
            output = tree_map_only(Tensor, _writable_copy, self._outputs[unit][self._batch])
        else:
            output = forward(*args, **kwargs)
            if self._storing and self._place == self._end:
                self._outputs.setdefault(unit, {})[self._batch] = tree_map_only(Tensor, Tensor.clone, output)
        self._place = 2 * unit + 2
        tree_map_only(Tensor, functools.partial(self._watch.mark, unit), output)
        return output


def _writable_copy(tensor: Tensor) -> Tensor:
    """Return a copy; of a tensor whose values were dropped, an uninitialised one."""
    if tensor.is_floating_point() and tensor.dim() and not any(tensor.stride()):
        return tensor.new_empty(tensor.shape)
    return tensor.clone()


def _blocks(module: nn.Module, listed: bool) -> Iterator[nn.Module]:
    """Yield the elements of the containers (Sequential, ModuleList) in a module that have parameters."""
    for child in module.children():
        if type(child) in (nn.Sequential, nn.ModuleList):
            yield from _blocks(child, True)
        elif not listed:
            yield from _blocks(child, False)
        elif next(child.parameters(), None) is not None:
            yield child
