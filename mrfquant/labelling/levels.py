"""Level sets: the values q = (q_1 < ... < q_d) that a quantized weight can take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mrfquant.config.settings import Check, Positive, configurable
from mrfquant.errors import BadInput, BadSetting

MOST = 2**16
Bits = Annotated[int, Check(lambda v: 1 <= v <= 8, "a whole number from 1 to 8")]


@dataclass(frozen=True)
class LevelSet:
    """At least two finite, different values, kept in increasing order.

    >>> LevelSet([1, -1]).values
    (-1.0, 1.0)
    """

    values: tuple[float, ...]

    def __init__(self, values: Sequence[float]) -> None:
        if len(values) > MOST:
            raise BadInput(
                f"Labelling.levels has {len(values):,} levels, expected at most {MOST:,}", "Labelling.levels"
            )
        given = [float(v) for v in values]
        if len(set(given)) < max(2, len(given)) or not all(math.isfinite(v) for v in given):
            raise BadSetting("Labelling.levels", given, "two or more different finite numbers")
        object.__setattr__(self, "values", tuple(sorted(given)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def bits(self) -> int:
        """Bits that a label takes: ceil(log2 d)."""
        return (len(self) - 1).bit_length()

    @property
    def middle(self) -> float:
        """The mean of the lowest and the highest level."""
        return (self.values[0] + self.values[-1]) / 2

    @property
    def half_gap(self) -> float:
        """Half the distance between the lowest and the highest level."""
        return (self.values[-1] - self.values[0]) / 2

    @property
    def midpoints(self) -> tuple[float, ...]:
        """Between neighbours: a value rounds to the level on its side."""
        return tuple((a + b) / 2 for a, b in zip(self.values, self.values[1:], strict=False))


@configurable
def uniform(bits: Bits, limit: Positive = 1.0) -> LevelSet:
    """Return 2^bits evenly spaced levels from -limit to limit."""
    d = 2**bits
    return LevelSet([limit * (2 * i / (d - 1) - 1) for i in range(d)])
