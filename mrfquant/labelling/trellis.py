"""Trellis codes: level sets whose labels depend on each other, so that a few bits a weight reach many values.

Weights are read from a stream of bits: the state s_t of weight t is the last `memory` bits after `bits` more have been
read for it, and its level is C[s_t], from a fixed table C of 2^memory numbers. A state has 2^bits successors and as
many predecessors:

    s_t = (s_{t-1} << bits | new bits) mod 2^memory

so a chain of T weights takes bits T + (memory - bits) bits, and its labels are a path through the trellis.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling.levels import Bits, LevelSet, uniform
from mrfquant.labelling.matrices import Matrix

MAX_MEMORY = 16
SMALLEST_CHAIN = 64  # weights of a parameter below which a chain is not worth its start
FEWEST_ROWS = 128  # rows from which on each input has a chain of its own


@configurable
@dataclass(frozen=True, init=False)
class Trellis(LevelSet):
    """The levels of a trellis code: 2^memory quantiles of a standard normal distribution.

    A label is the number of a level in increasing order, as in any level set; `label_of_state` maps states to labels.

    >>> levels = Trellis(bits=2, memory=8)
    >>> len(levels), levels.bits, levels.shared
    (256, 2, 64)

    Args:
        bits: read for each weight.
        memory: bits of a state; more of them make smaller errors and slower rounding, which takes 2^memory steps a
            weight.
    """

    bits: int = 2  # a number here, a property of other level sets
    memory: int = 8

    def __init__(self, bits: Bits = 2, memory: int = 8) -> None:
        if isinstance(memory, bool) or not bits < memory <= MAX_MEMORY:
            expected = f"a whole number from {bits + 1} (more than its {bits} bits a weight) to {MAX_MEMORY}"
            raise BadSetting("Trellis.memory", memory, expected)
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "values", normal_quantiles(2**memory))

    @property
    def branches(self) -> int:
        """Successors of a state, 2^bits; as many states are its predecessors."""
        return 1 << self.bits

    @property
    def shared(self) -> int:
        """Number of prefixes, 2^(memory - bits): states that agree in their last memory - bits bits share successors.

        The predecessors of state s are p + j * shared for p = s >> bits and j < branches.
        """
        return 1 << (self.memory - self.bits)

    @property
    def label_of_state(self) -> Tensor:
        """The label of each state, a permutation of 0 .. 2^memory - 1: int64 (2^memory,)."""
        return congruence(self.bits, self.memory)

    @property
    def state_of_label(self) -> Tensor:
        """The state of each label: int64 (2^memory,)."""
        return self.label_of_state.argsort()

    @property
    def table(self) -> Tensor:
        """The level of each state, C: float32 (2^memory,)."""
        return quantiles_in_order(self.bits, self.memory)

    def follows(self, states: Tensor) -> Tensor:
        """Return whether each state (T, ...) but the first may follow the one before it: bool (T - 1, ...)."""
        return states[1:] >> self.bits == states[:-1] & (self.shared - 1)

    def check_path(self, labels: Tensor, name: str) -> Tensor:
        """Return the states of labels (T, ...) along chains; BadInput if they are no path through the trellis."""
        states = self.state_of_label.to(labels.device)[labels.long()]
        if not self.follows(states).all():
            raise BadInput(
                f"the labels of {name} are no path through a trellis of {self.bits} bits and memory "
                f"{self.memory}: round the weight along its chain"
            )
        return states


def levels_for_the_short(
    sets: Mapping[str, LevelSet], parameters: Mapping[str, Tensor], others: Mapping[str, Matrix]
) -> dict[str, LevelSet]:
    """Return even levels in the place of a trellis for parameters that do not suit chains, and warn of these.

    Those are too short, or matrices in another way than nn.Linear's, as `others` says.
    """
    chained = [n for n, of in sets.items() if isinstance(of, Trellis)]
    short = [n for n in chained if n in others or not _is_long(parameters[n])]
    if short:
        warnings.warn(
            f"{', '.join(short)} {'has' if len(short) == 1 else 'have'} even levels in the place of a trellis, which "
            f"needs matrices (outputs, inputs) of at least {SMALLEST_CHAIN} weights",
            stacklevel=3,
        )
    return {**sets, **{name: uniform(sets[name].bits) for name in short}}


def _is_long(parameter: Tensor) -> bool:
    return parameter.dim() > 1 and parameter.numel() >= SMALLEST_CHAIN


def chain_length(shape: Sequence[int]) -> int:
    """Return the weights of each chain through a parameter: a row of outputs for each input, or all if these are few.

    The start of a chain takes memory - bits more bits.
    """
    return shape[0] if shape[0] >= FEWEST_ROWS else math.prod(shape)


@functools.cache
def normal_quantiles(count: int) -> tuple[float, ...]:
    """Return the quantiles of a standard normal distribution in the middles of `count` equal intervals, increasing."""
    upper = [NormalDist().inv_cdf((i + 0.5) / count) for i in range(count // 2, count)]
    return (*(-value for value in reversed(upper)), *upper)


@functools.cache
def quantiles_in_order(bits: int, memory: int) -> Tensor:
    """Return the quantiles in the order of the states that have them."""
    return torch.tensor(normal_quantiles(2**memory))[congruence(bits, memory)]


@functools.cache
def congruence(bits: int, memory: int) -> Tensor:
    """Return a permutation of 0 .. 2^memory - 1 by a linear congruence.

    The multiplier is the smallest distance that spreads the successors of a state evenly, and a little more, so that
    states which differ in other bits have levels in between. On normal numbers its error is a tenth below that of a
    random permutation (2 bits, memory 8).
    """
    multiplier = 2 ** (memory - bits) + (2 ** max(0, (memory - bits - 2) // 2) | 1)
    return torch.arange(2**memory) * multiplier % 2**memory
