"""Distributions over the labels of a block, as energies, diagnostics and sampling ask for them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.labelling import Block

# Weights whose probabilities are made at once where they are not kept: they need memory for a moment only.
CHUNK = 2**18


class Distribution(ABC):
    """The present distribution over the labels of a block; labels may depend on each other.

    Attributes:
        block: whose labels.
    """

    block: Block

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return what each weight adds to the entropy of the block, in bits: (m,)."""

    @abstractmethod
    def decided(self, threshold: float) -> Tensor:
        """Return whether a label of each weight has at least the probability `threshold`: bool (m,)."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw the labels of the block: int32 (m,)."""

    def probabilities(self) -> Tensor:
        """Return the probability of each label of each weight: (d, m)."""
        raise BadInput(f"{type(self).__name__} has no probabilities of single labels, which this energy asks for")

    def mean(self) -> Tensor:
        """Return the expected weights, with their scales: (m,)."""
        return self.block.scaled(self.block.q @ self.probabilities())

    def variance(self) -> Tensor:
        """Return the variance of each weight, with its scale: (m,)."""
        u = self.probabilities()
        variance = ((self.block.q[:, None] - self.block.q @ u).square() * u).sum(0)
        return self.block.scaled(self.block.scaled(variance))


class Independent(Distribution):
    """Independent labels with probabilities u (d, m).

    Args:
        block: whose labels.
        u: the probabilities, or a function that makes those of some chunks of weights after the other.
    """

    def __init__(self, block: Block, u: Tensor | Callable[[], Iterator[Tensor]]) -> None:
        self.block, self._u = block, u

    def probabilities(self) -> Tensor:
        chunks = list(self._chunks())
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, 1)

    def entropy(self) -> Tensor:
        return self._map_chunks(lambda u: torch.special.entr(u).sum(0) / math.log(2))

    def decided(self, threshold: float) -> Tensor:
        return self._map_chunks(lambda u: u.amax(0) >= threshold)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        def drawn(u: Tensor) -> Tensor:
            draw = torch.rand(u.shape[1], generator=generator, device=u.device, dtype=u.dtype)
            return (draw >= u.cumsum(0)[:-1]).sum(0).int()

        return self._map_chunks(drawn)

    def _chunks(self) -> Iterator[Tensor]:
        return iter((self._u,)) if isinstance(self._u, Tensor) else self._u()

    def _map_chunks(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        found = [function(u) for u in self._chunks()]
        return found[0] if len(found) == 1 else torch.cat(found)


class PairOfLabels(Independent):
    """Two independent labels with probabilities (1 - t) / 2 and (1 + t) / 2.

    Args:
        block: whose labels.
        t: makes t (m,) when it is asked for.
    """

    def __init__(self, block: Block, t: Callable[[], Tensor]) -> None:
        self.block, self._make_t = block, t

    def mean(self) -> Tensor:
        return self.block.scaled(self.block.levels.middle + self.block.levels.half_gap * self._make_t())

    def variance(self) -> Tensor:
        variance = self.block.levels.half_gap**2 * (1 - self._make_t().square())
        return self.block.scaled(self.block.scaled(variance))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        t = self._make_t()
        draw = torch.rand(len(t), generator=generator, device=t.device, dtype=t.dtype)
        return (draw < (1 + t) / 2).int()

    def _chunks(self) -> Iterator[Tensor]:
        t = self._make_t()
        yield torch.stack([(1 - t) / 2, (1 + t) / 2])
