"""Entropies: which distribution over labels u stands for, and so which map takes auxiliary variables to u."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from mrfquant.config.settings import NonNegative, configurable
from mrfquant.energies import Energy, PairwiseEnergy
from mrfquant.energies.pairwise import LayerCurvature
from mrfquant.errors import BadInput
from mrfquant.labelling import Block
from mrfquant.pairwise.trees import SpanningTree
from mrfquant.projections import Line, Projection, Softmax
from mrfquant.projections.base import Costs


class Entropy(ABC):
    """H in argmax over u of <ũ, u> + H(u) / beta."""

    @abstractmethod
    def projection(self, block: Block, softmax: Softmax, energy: Energy) -> Projection:
        """Return the map from ũ to that u for a block's variables; `softmax` is the map without interactions."""


@configurable
class TreeEntropy(Entropy):
    """The entropy of a distribution that is exact on a spanning tree of each layer's strongest couplings.

    u = P(beta ũ) are the marginals of p(labels) ∝ exp(beta (sum of ũ - sum over tree edges of C_ij w_i w_j)), by
    sum-product; couplings off the tree act through the gradient only, at the means (structured mean-field). The
    couplings are those of `PairwiseEnergy`; where there are none, P is softmax.

    Args:
        strength: multiplies the couplings. 1 is right where ũ is in units of the loss, as in `MeanField`; the scale of
            variables that an optimizer drives is its own.
    """

    def __init__(self, strength: NonNegative = 1.0) -> None:
        self.strength = strength

    def projection(self, block: Block, softmax: Softmax, energy: Energy) -> Projection:
        if (pairwise := energy.find(PairwiseEnergy)) is None:
            raise BadInput(
                f"TreeEntropy needs the couplings of a PairwiseEnergy, the energy is {type(energy).__name__}: set "
                "energy = @PairwiseEnergy(), or leave the entropy out"
            )
        return TreeSoftmax(block, softmax, pairwise, self.strength)


class TreeSoftmax(Projection):
    """Softmax, but for layers with curvature the marginals of the tree; an approximate Jacobian stays softmax's own."""

    by_weight = False

    def __init__(self, block: Block, softmax: Softmax, energy: PairwiseEnergy, strength: float) -> None:
        self.block, self.softmax, self.energy, self.strength = block, softmax, energy, strength

    def planes(self, aux: Tensor, beta: float, out: Tensor | None = None) -> Tensor:
        marginals = [(layer, self._marginals(layer, aux, beta)) for layer in self._layers()]
        out = self.softmax.planes(aux, beta, out)
        for layer, u in marginals:
            for plane, values in zip(out, u, strict=True):
                layer.write(plane, values)
        return out

    def pair(self, aux: Tensor, line: Line, beta: float, out: Tensor | None = None) -> Tensor:
        found = [(layer, self._pair_marginals(layer, aux, beta)) for layer in self._layers()]
        out = self.softmax.mean(aux, line, beta, out)
        for layer, t in found:
            layer.write(out, t)
        return out

    def planes_vjp(self, u: Tensor, g: Tensor, beta: float, aux: Tensor) -> Tensor:
        products = [(layer, self._product(layer, g, aux, beta)) for layer in self._exact_layers()]
        out = self.softmax.planes_vjp(u, g, beta, aux)
        for layer, product in products:
            for plane, values in zip(out, product, strict=True):
                layer.write(plane, values)
        return out

    def pair_vjp(self, t: Tensor, delta: Tensor, beta: float, aux: Tensor, line: Line) -> Tensor:
        both, gradient = torch.stack([-aux, aux]), torch.stack([-delta, delta])
        products = [(layer, self._product(layer, gradient, both, beta)) for layer in self._exact_layers()]
        out = self.softmax.mean_vjp(t, delta, beta, aux, line)
        for layer, product in products:
            layer.write(out, (product[1] - product[0]) / 2)
        return out

    def weights_vjp(
        self, u: Tensor, q: Tensor, w: Tensor | None, g: Tensor, beta: float, aux: Tensor, costs: Costs | None = None
    ) -> Tensor:
        product = super().weights_vjp if self.softmax.jacobian == "exact" else self.softmax.weights_vjp
        return product(u, q, w, g, beta, aux, costs)

    def _layers(self) -> list[LayerCurvature]:
        return self.energy.curvatures(self.block) if self.strength else []

    def _exact_layers(self) -> list[LayerCurvature]:
        return self._layers() if self.softmax.jacobian == "exact" else []

    def _marginals(self, layer: LayerCurvature, aux: Tensor, beta: float) -> Tensor:
        """Return u of the layer's weights, (d, groups, rows, n), from planes of the block (d, m)."""
        logits = torch.stack([layer.read(plane) for plane in aux]) * beta
        parts = [
            tree.sum_product(part.transpose(1, 2), x, couplings * beta)[0].transpose(1, 2)
            for part, (tree, x, couplings) in zip(logits.unbind(1), self._fields(layer), strict=True)
        ]
        return torch.stack(parts, 1)

    def _pair_marginals(self, layer: LayerCurvature, aux: Tensor, beta: float) -> Tensor:
        """Return t of the layer's weights, (groups, rows, n), from ã (m,) of the block."""
        if self.block.levels.middle:
            u = self._marginals(layer, torch.stack([-aux, aux]), beta)
            return u[1] - u[0]
        fields, scales = layer.read(aux) * beta, self._scales(layer)
        factors = layer.g * (self.strength * beta * self.block.levels.half_gap**2)
        parts = [
            tree.pair_marginals(
                fields[group],
                self._edges(layer, group, tree)[:, 0],
                factors[group],
                None if scales is None else scales[group],
            )
            for group, tree in enumerate(layer.trees)
        ]
        return torch.stack(parts)

    def _product(self, layer: LayerCurvature, g: Tensor, aux: Tensor, beta: float) -> Tensor:
        """Return the gradient of <g, u> by ũ, (d, groups, rows, n): the covariances of the tree times g."""
        with torch.enable_grad():
            leaf = aux.detach().requires_grad_()
            u = self._marginals(layer, leaf, beta)
            gradient = torch.stack([layer.read(plane) for plane in g])
            (product,) = torch.autograd.grad(u, leaf, gradient)
        return torch.stack([layer.read(plane) for plane in product])

    def _fields(self, layer: LayerCurvature) -> Iterator[tuple[SpanningTree, Tensor, Tensor]]:
        """Yield each group's tree, values of the labels (d, n or 1, rows or 1) and couplings (n, rows)."""
        scales = self._scales(layer)
        for group, tree in enumerate(layer.trees):
            x = self.block.q[:, None, None]
            if scales is not None:
                x = x * scales[group].T
            yield tree, x, self.strength * self._edges(layer, group, tree) * layer.g[group]

    def _scales(self, layer: LayerCurvature) -> Tensor | None:
        return None if (each := self.block.scale) is None else layer.read(each)

    @staticmethod
    def _edges(layer: LayerCurvature, group: int, tree: SpanningTree) -> Tensor:
        """Return the entry of A for each variable and its parent: (n, 1)."""
        return layer.a[group].gather(1, tree.above[:, None])
