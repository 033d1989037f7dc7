"""The order in which a network uses its weights and norms, found by running it once on every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from mrfquant.rounding.products import Product
from mrfquant.rounding.watch import Use, Watch


@dataclass
class Step:
    """What is treated at once. Places in a forward are numbers: 2 i + 1 within unit i, 2 i between unit i - 1 and i.

    Attributes:
        names: of weights with the same inputs, or of one norm; none where a unit's outputs are to be stored.
        first: place of the first use.
        last: place of the last use.
        uses: how many there are in every forward, if that is known: it may end after them.
        sums: or after their outputs have been added to something.
    """

    names: list[str]
    first: int
    last: int
    uses: int | None = None
    sums: bool = False


@dataclass
class _Known:
    """What is known of a weight or norm: places, the number of uses in each batch and of those that are parts of sums,
    whether the network chose their inputs, and the weight before it that has the same inputs."""

    first: int
    last: int
    uses: list[int] = field(default_factory=list)
    added: int = 0
    routed: bool = False
    like: str | None = None


class Scout(Watch):
    """Finds the steps of a walk; it keeps none of the tensors that it sees but one.

    Args:
        weights: to round, by name.
        norms: batch norms, by name.
        place: tells where in a forward the network is.

    Attributes:
        read: the units whose outputs others than the next one read.
    """

    def __init__(self, weights: Mapping[str, Tensor], norms: Mapping[str, nn.Module], place: Callable[[], int]) -> None:
        super().__init__(weights, norms)
        self.read: set[int] = set()
        self._weights, self._place = weights, place
        self._known: dict[str, _Known] = {}
        self._last: tuple[str, Tensor] | None = None  # the weight that was used last, and its inputs
        self._batches = 0

    def used(self, name: str, product: Product | None, inputs: Tensor, routed: bool) -> Use:
        place = self._place()
        if name not in self._known:
            same = self._last is not None and self._last[1] is inputs and name in self._weights
            self._known[name] = _Known(place, place, like=self._last[0] if same and self._last else None)
        known = self._known[name]
        known.first, known.last = min(known.first, place), max(known.last, place)
        self._last = (name, inputs) if name in self._weights else None
        self.uses.append(Use(name, None, inputs.new_empty(0), routed))
        return self.uses[-1]

    def touched(self, unit: int) -> None:
        if unit != self._place() // 2 - 1:
            self.read.add(unit)

    def end_of_batch(self) -> None:
        """Count what was used."""
        for name, known in self._known.items():
            uses = [use for use in self.uses if use.name == name]
            known.uses.append(len(uses))
            known.added += sum(use.added for use in uses)
            known.routed |= any(use.routed for use in uses)
        self._batches += 1
        self.uses.clear()
        self._last = None

    def steps(self) -> list[Step]:
        """In the order of the first uses."""
        steps: dict[str, Step] = {}
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
                steps[name] = Step([name], known.first, known.last, count, known.added > 0)
        return list({id(step): step for step in steps.values()}.values())
