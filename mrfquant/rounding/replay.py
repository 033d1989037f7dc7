"""Running a network again and again up to some layer, without computing again what is before it.

The blocks of a network (the elements of its Sequentials and ModuleLists) that are called once in every forward are its
units. Their outputs are carried: a forward that needs a layer of unit i takes the outputs of the units before it as
they are stored, computes what is between them, and ends where unit i + 1 begins. Of the units before the last one the
outputs are stored only if something else than the next unit reads them. Where there are no units, forwards are whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrfquant.errors import BadInput
from mrfquant.rounding.scout import Scout, Step
from mrfquant.rounding.watch import Reached, Watch

Forward = Callable[[nn.Module, Any], Any]


class _Irregular(Exception):
    """A unit is not called once, in its order."""


@dataclass
class Replay:
    """A network's forwards on some batches.

    Attributes:
        model: the network.
        forward: computes a batch.
        batches: all of them.
        seed: of what forwards draw: the float and the rounded network draw the same.
        units: of the network, in the order of their calls.
    """

    model: nn.Module
    forward: Forward
    batches: Sequence[Any]
    seed: int = 0
    units: list[nn.Module] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read: set[int] = set()  # units whose outputs others than the next one read
        self._outputs: dict[int, dict[tuple[int, bool], Any]] = {}  # unit: (batch, of the float network): output
        self._place, self._begin, self._end = 0, 0, 0
        self._batch, self._watch, self._storing = (0, True), Watch({}), False

    def steps(self, weights: dict[str, Tensor], norms: Mapping[str, nn.Module]) -> list[Step]:
        """Find the units, and what is used where, in the order of the first uses."""
        self.units = self._called_once()
        try:
            found = self._look(weights, norms)
        except _Irregular:
            self.units = []
            found = self._look(weights, norms)
        steps = [*found, *(Step([], 2 * unit + 1, 2 * unit + 1) for unit in range(len(self.units)))]
        return sorted(steps, key=lambda step: step.first)  # stable: a unit's outputs after what is in it

    def run(self, step: Step, index: int, as_float: bool, watch: Watch) -> None:
        """Compute a batch as far as a step needs it."""
        with self._wrapped():
            self._storing = not step.names
            try:
                self._run(index, as_float, step.first // 2, step.last, watch)
            except _Irregular:
                raise BadInput(
                    "the rounded network calls its blocks in another order than the float one: exclude the layers that "
                    "decide about it"
                ) from None

    def carried(self, unit: int) -> None:
        """The outputs of a unit are stored: those of the one before are needed no more, unless others read them."""
        for key, output in self._outputs.get(unit - 1, {}).items():
            if unit - 1 not in self._read:
                self._outputs[unit - 1][key] = tree_map_only(Tensor, _without_values, output)

    def _run(self, index: int, as_float: bool, begin: int, end: int, watch: Watch) -> None:
        self._batch, self._watch = (index, as_float), watch
        self._place, self._begin, self._end = 0, begin, end
        torch.manual_seed(self.seed + index)
        try:
            with watch:
                self.forward(self.model, self.batches[index])
        except Reached:
            pass
        finally:
            self._watch = Watch({})

    def _look(self, weights: dict[str, Tensor], norms: Mapping[str, nn.Module]) -> list[Step]:
        """What is used where, over all batches."""
        scout = Scout(weights, norms, lambda: self._place)
        with self._wrapped():
            for index in range(len(self.batches)):
                self._run(index, True, 0, 2 * len(self.units) + 1, scout)
                if self._place != 2 * len(self.units):
                    raise _Irregular
                scout.end_of_batch()
        self._read = scout.read
        return scout.steps()

    def _called_once(self) -> list[nn.Module]:
        """Blocks that the first batch calls once, none within another, in the order of their calls."""
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
        """Let calls of units go by `_call`."""
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
        """The output of a unit: stored, or computed and stored."""
        if self._place != 2 * unit or self._watch.routed((args, kwargs)):
            raise _Irregular
        self._place = 2 * unit + 1
        if self._place > self._end:
            raise Reached
        if unit < self._begin:
            output = tree_map_only(Tensor, _given_away, self._outputs[unit][self._batch])
        else:
            output = forward(*args, **kwargs)
            if self._storing and self._place == self._end:
                self._outputs.setdefault(unit, {})[self._batch] = tree_map_only(Tensor, Tensor.clone, output)
        self._place = 2 * unit + 2
        tree_map_only(Tensor, functools.partial(self._watch.mark, unit), output)
        return output


def _without_values(tensor: Tensor) -> Tensor:
    """One of the same shape that takes no memory."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _given_away(tensor: Tensor) -> Tensor:
    """A copy, which may be written to; of a tensor without values, any values will do."""
    if tensor.is_floating_point() and tensor.dim() and not any(tensor.stride()):
        return tensor.new_empty(tensor.shape)
    return tensor.clone()


def _blocks(module: nn.Module, listed: bool) -> Iterator[nn.Module]:
    """The elements of outermost containers that have parameters; those of containers within containers."""
    for child in module.children():
        if type(child) in (nn.Sequential, nn.ModuleList):
            yield from _blocks(child, True)
        elif not listed:
            yield from _blocks(child, False)
        elif next(child.parameters(), None) is not None:
            yield child
