"""Find the order in which a network uses its weights and norms, by running it once on every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from mrfquant.rounding.products import Product
from mrfquant.rounding.watch import Use, Watch


@dataclass
class CalibrationStep:
    """Weights calibrated together. Positions in a forward pass: 2i + 1 inside unit i, 2i before it.

    Attributes:
        names: weights with the same inputs, or one norm; empty where the outputs of a unit are stored.
        first: position of the first use.
        last: position of the last use.
        uses: number of uses in every forward pass, if it is constant: the pass can end after them.
        sums: whether the pass has to go on until their outputs have been added to something.
    """

    names: list[str]
    first: int
    last: int
    uses: int | None = None
    sums: bool = False


@dataclass
class _Usage:
    """Uses of a weight or norm: their positions, their number in each batch, how many are added to something, whether
    the network's activations selected the inputs, and the weight used before on the same inputs."""

    first: int
    last: int
    uses: list[int] = field(default_factory=list)
    added: int = 0
    routed: bool = False
    like: str | None = None


class StepFinder(Watch):
    """Finds the calibration steps, and in `read` the units whose outputs are read by others than the next unit.

    Args:
        weights: the weights to round, by name.
        norms: batch norms, by name.
        place: returns the present position in the forward pass.
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
