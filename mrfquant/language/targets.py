"""The grids of other programs: what a weight can be in their files. Labels are inferred on the grid itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet

ScaleType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Target:
    """A type of file, and the levels that its weights can have.

    Attributes:
        name: what the command calls it.
        program: what runs the file.
        levels: of a weight, before its scale.
        group_size: neighbouring weights of a row that share a scale.
        scale_type: the type in which the file keeps scales and zero points.
        zero_point: a group also has a number that is added.
    """

    name: str
    program: str
    levels: tuple[float, ...]
    group_size: int
    scale_type: ScaleType = "float16"
    zero_point: bool = False

    @property
    def label_bits(self) -> int:
        """Bits of a label."""
        return (len(self.levels) - 1).bit_length()

    @property
    def bits(self) -> float:
        """Bits of a weight, scales and zero points included."""
        return self.label_bits + (32 if self.zero_point else 16) / self.group_size

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless rows of this shape divide into groups."""
        if shape[-1] % self.group_size:
            told = f"{self.name} keeps groups of {self.group_size} weights, which do not divide the rows of {name}"
            raise BadInput(f"{told}, {shape[-1]} weights long: take another type, or exclude it")


def _whole(first: int, last: int) -> tuple[float, ...]:
    return tuple(map(float, range(first, last + 1)))


TARGETS = {
    target.name: target
    for target in (
        Target("q2_0", "llama.cpp", _whole(-1, 2), 64),
        Target("q1_0", "llama.cpp", (-1.0, 1.0), 128),
        Target("tq2_0", "llama.cpp", _whole(-1, 1), 256),
        Target("q4_0", "llama.cpp", _whole(-8, 7), 32),
        *(Target(f"mlx{b}", "mlx-lm", _whole(0, 2**b - 1), 64, zero_point=True) for b in (2, 3, 4)),
    )
}


def target_of(name: str) -> Target:
    """Return the target of this name."""
    if name not in TARGETS:
        raise BadInput(f"there is no type {name}, expected one of {', '.join(TARGETS)}")
    return TARGETS[name]


def level_set(target: Target) -> LevelSet:
    """Return the target's levels."""
    return LevelSet(list(target.levels))
