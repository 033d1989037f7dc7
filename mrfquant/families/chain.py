"""Chains: the labels of a parameter are a path through a trellis, with one natural parameter for each weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.families.base import Family, Gradient
from mrfquant.families.distribution import Distribution
from mrfquant.labelling import Block, Trellis
from mrfquant.labelling.trellis import chain_length
from mrfquant.pairwise.chains import expected_levels, marginals, sampled_paths
from mrfquant.pairwise.paths import best_paths
from mrfquant.projections import Projection, Softmax

LOG_2 = math.log(2)


class Chain(Family):
    """Paths s through a trellis with probabilities p(s) ∝ exp(-beta / 2 sum over t of (x_t - C[s_t])²).

    x is in units of the levels, which are close to normal: as long as beta is small the weights are x beta / (1 + beta)
    or so, as large as they need to be, and as it grows they become those of the path nearest to x.

    Labels are in the order of the parameters' memory; along a chain they follow as `order` says.
    """

    def __init__(self, block: Block, projection: Projection) -> None:
        super().__init__(block, projection)
        if type(projection) is not Softmax or projection.jacobian != "straight_through":
            raise BadInput(
                "the labels of a trellis are trained straight through: take @MirrorDescent, or @ProximalMeanField with "
                "jacobian = 'straight_through' and no entropy of its own"
            )
        if sum(like.numel() for like in block.layouts) != block.m:
            raise BadInput("a chain goes through a whole parameter, which shard cuts: drop shard, or the trellis")
        assert isinstance(block.levels, Trellis)
        self.trellis, device = block.levels, block.w.device
        self.table = self.trellis.table.to(block.w)
        self.label_of_state = self.trellis.label_of_state.to(device=device, dtype=torch.int32)
        self.orders = [order + first for first, order in _orders(block)]

    def chains(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the places (T, chains) of each parameter's chains, and what x (m,) has there."""
        for order in self.orders:
            yield order, x[order]

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        x = draw()
        for part in x.split(self.block.parameter_sizes):
            part.div_(part.square().mean().sqrt().clamp_(min=torch.finfo(x.dtype).tiny))
        return x

    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        if as_mean:
            raise BadInput("chains need auxiliary variables: set auxiliary = True")
        return w * (1 + 1 / beta)  # what the expectation takes away while beta is small

    def write(self, x: Tensor, beta: float) -> None:
        self.block.w.copy_(self.expected(x, beta))
        self.block.apply_scale()

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        g = self.block.scaled(self._on_weights(gradient))
        return g if factor == 1 else g.mul_(factor)

    def labels(self, x: Tensor, beta: float) -> Tensor:
        def mode(part: Tensor) -> Tensor:
            return best_paths(part, torch.ones_like(part), self.table, self.trellis.bits)

        return self.label_of_state[self._map_chains(x, mode)]

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        return Paths(self, x, beta)

    def expected(self, x: Tensor, beta: float) -> Tensor:
        """Return the expected levels of x, in units of the levels: (m,)."""
        return self._map_chains(x, lambda part: expected_levels(part, self.table, self.trellis.bits, beta))

    def sampled(self, x: Tensor, beta: float, draws: Tensor) -> Tensor:
        """Return labels of paths, given draws (m,) from 0 to 1: int32 (m,)."""
        trellis, states = self.trellis, torch.empty_like(x, dtype=torch.int64)
        for order, part in self.chains(x):
            states[order] = sampled_paths(part, self.table, trellis.bits, beta, draws[order])
        return self.label_of_state[states]

    def _on_weights(self, gradient: Gradient) -> Tensor:
        if gradient.costs is not None or gradient.marginals is not None or gradient.weights is None:
            raise BadInput("an energy with costs of single labels does not go with a trellis, whose labels are paths")
        return gradient.weights

    def _map_chains(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a function of chains (T, chains) says of each weight: (m,)."""
        found = [(order, function(part)) for order, part in self.chains(x)]
        out = torch.empty_like(x, dtype=found[0][1].dtype)
        for order, values in found:
            out[order] = values
        return out


class ChainInWells(Chain):
    """Paths for trained weights: natural parameters x are latent weights in the network's own units, as in `Wells`.

        E[w | x] = x / beta + (1 - 1 / beta) s E[C[s_t] | x / s]

    At beta = 1 the network computes with x itself. Scales s of runs of weights follow x by least squares; expectations
    are too small by 1 + 1 / beta, which the fit makes up for.
    """

    def start(self, draw: Callable[[], Tensor], beta: float) -> Tensor:
        return self._fitted(draw())

    def start_at(self, w: Tensor, beta: float, as_mean: bool = False) -> Tensor:
        return self._fitted(self.block.scaled(w.clone()))

    def write(self, x: Tensor, beta: float) -> None:
        w = self.block.w.copy_(self.expected(self.unscaled(x), beta))
        self._fit(x, w, beta / (1 + beta))
        self.block.apply_scale()
        w.lerp_(x, 1 / max(beta, 1.0))

    def pull_back(self, gradient: Gradient, x: Tensor, beta: float, factor: float) -> Tensor:
        return self._on_weights(gradient)

    def labels(self, x: Tensor, beta: float) -> Tensor:
        return super().labels(self.unscaled(x), beta)

    def distribution(self, x: Tensor, beta: float) -> Distribution:
        return PathsInWells(self, x, max(beta, 1.0))

    def unscaled(self, x: Tensor) -> Tensor:
        """Return x in units of the levels; it may be x itself."""
        return x if self.block.scales is None else self.block.scales.divide(x.clone())

    def _fitted(self, x: Tensor) -> Tensor:
        self._fit(x, x.sign(), 1 / self.table.abs().mean().item())
        return x

    def _fit(self, x: Tensor, q: Tensor, factor: float) -> None:
        if (scales := self.block.scales) is not None and not scales.given:
            scales.least_squares(x, q, factor)


class Paths(Distribution):
    """The distribution over the paths of a block."""

    def __init__(self, family: Chain, x: Tensor, beta: float) -> None:
        self.block, self._family, self._x, self._beta = family.block, family, x, beta

    def entropy(self) -> Tensor:
        """Return H(s_t | s_{t-1}), in bits; these add up to the entropy of the chain."""
        return self._map_marginals(self._conditional_entropy)

    def decided(self, threshold: float) -> Tensor:
        return self._map_marginals(lambda u: u.amax(2) >= threshold)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        x = self._x
        draws = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
        return self._family.sampled(x, self._beta, draws)

    def probabilities(self) -> Tensor:
        u = self.block.q.new_empty(self.block.m, self.block.d)
        by_label = self._family.trellis.state_of_label.to(u.device)
        for order, part in self._family.chains(self._x):
            u[order] = self._marginals(part)[..., by_label]
        return u.T

    def mean(self) -> Tensor:
        return self.block.scaled(self._map_marginals(lambda u: u @ self._family.table))

    def variance(self) -> Tensor:
        table = self._family.table
        variance = self._map_marginals(lambda u: ((u @ table)[..., None] - table).square().mul_(u).sum(2))
        return self.block.scaled(self.block.scaled(variance))

    def _marginals(self, part: Tensor) -> Tensor:
        return marginals(part, self._family.table, self._family.trellis.bits, self._beta)

    def _map_marginals(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self._family._map_chains(self._x, lambda part: function(self._marginals(part)))

    def _conditional_entropy(self, u: Tensor) -> Tensor:
        """Return what each weight adds, from probabilities of states (T, chains, states).

        A state depends on the one before it by its prefix alone, which the first one has from nowhere.
        """
        of_prefix = u.view(*u.shape[:2], -1, self._family.trellis.branches).sum(3)
        known = torch.special.entr(of_prefix).sum(2)
        known[0] = 0
        return (torch.special.entr(u).sum(2) - known).clamp_(min=0).mul_(1 / LOG_2)


class PathsInWells(Paths):
    """The joint distribution of paths and weights: a path, and a normal weight around each of its levels."""

    def __init__(self, family: ChainInWells, x: Tensor, beta: float) -> None:
        super().__init__(family, family.unscaled(x), beta)
        self._latent = x

    def mean(self) -> Tensor:
        return super().mean().lerp_(self._latent, 1 / self._beta)

    def variance(self) -> Tensor:
        share = 1 - 1 / self._beta  # of the labels
        within = torch.full_like(self._latent, share / self._beta**2)
        return super().variance().mul_(share**2).add_(self.block.scaled(self.block.scaled(within)))


def _orders(block: Block) -> Iterator[tuple[int, Tensor]]:
    """Yield where each parameter begins, and the places in its memory that its chains go through: (T, chains).

    Chains go through a weight matrix (rows, n) input by input, along the rows, as packed files have them.
    """
    first = 0
    for like in block.layouts:
        places = torch.arange(like.numel(), device=block.w.device).as_strided(like.shape, like.stride())
        by_input = places.reshape(len(like), -1).T
        yield first, by_input.reshape(-1, chain_length(like.shape)).T.contiguous()
        first += like.numel()
