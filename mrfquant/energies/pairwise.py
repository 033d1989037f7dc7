"""The second-order model of the loss: weights of a row interact through the curvature of their layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrfquant.compute import present_team
from mrfquant.config.settings import Count, Damping, NonNegative, configurable
from mrfquant.energies.base import Energy
from mrfquant.errors import BadInput
from mrfquant.families import Distribution, Gradient
from mrfquant.labelling import Block, Labelling
from mrfquant.labelling.flat import part_of
from mrfquant.pairwise.curvature import curved_layers, damped, groups, output_curvature, second_moments
from mrfquant.pairwise.trees import SpanningTree


@dataclass(frozen=True)
class LayerCurvature:
    """The curvature g_r A of one labelled weight.

    Attributes:
        weight: the parameter. start: where it begins in its block. a: (groups, n, n), damped. g: (groups, rows).
        trees: of each group, the spanning tree of the strongest couplings when the first of them were known.
    """

    weight: Tensor
    start: int
    a: Tensor
    g: Tensor
    trees: list[SpanningTree]

    def read(self, of: Tensor) -> Tensor:
        """Return the part of a block's vector (m,) that belongs to the layer, as matrices (groups, rows, n)."""
        return self._view(of).reshape(*self.g.shape, -1)

    def write(self, to: Tensor, matrices: Tensor) -> None:
        """Put matrices back into the layer's part of a block's vector (m,)."""
        self._view(to).copy_(matrices.reshape(self.weight.shape))

    def diagonal(self) -> Tensor:
        """Return the curvature of each weight by itself: (groups, rows, n)."""
        return self.g[..., None] * self.a.diagonal(dim1=-2, dim2=-1)[:, None]

    def _view(self, of: Tensor) -> Tensor:
        return part_of(of, self.weight, self.start)


@configurable
class PairwiseEnergy(Energy):
    """E^k(u) = <g^k, w> + 1/2 E_u[(w - w^k)ᵀ C (w - w^k)], w = u q in the first term and drawn from u in the second.

    Under the factorised u the second term is 1/2 (ŵ - w^k)ᵀ C (ŵ - w^k) for the expected weights ŵ, plus half the sum
    of C_jj Var(w_j), which draws labels to a decision where the loss is curved. C is the Kronecker curvature of linear
    and convolutional layers (`mrfquant.pairwise.curvature`) for cross-entropy of the network's outputs over the
    temperature, the diagonal of it for their biases, and 0 for other parameters. It is gathered in the forward of a
    training step: running averages over mini-batches. At the present u, where solvers ask
    for the gradient, ŵ is w^k, so they pay for the diagonal only.

    Args:
        interval: gather in every so many forwards of training.
        decay: of the running averages, at each gathering.
        damping: added to the diagonal of A, as a share of its mean.
        strength: multiplies C.
        samples: of labels for the output curvature; None is exact and takes a backward per class.
    """

    def __init__(
        self,
        interval: Count = 100,
        decay: Damping = 0.9,
        damping: NonNegative = 0.01,
        strength: NonNegative = 1.0,
        samples: Count | None = 1,
    ) -> None:
        self.interval, self.decay, self.damping = interval, decay, damping
        self.strength, self.samples = strength, samples
        self._forwards = 0
        # Of every weight: A, g and the number of positions; sums that decay, of the total weight `_mass`.
        self._averages: dict[str, list[Tensor]] = {}
        self._mass = 0.0
        self._trees: dict[str, list[SpanningTree]] = {}
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}  # inputs and outputs of the forward under way
        self._curvatures: dict[int, list[LayerCurvature]] = {}  # by the start of a block
        self._diagonals: dict[int, Tensor] = {}

    def attach(self, labelling: Labelling) -> None:
        self._labelling = labelling
        layers = curved_layers(labelling.model).items()
        self._layers = {name: layer for name, layer in layers if name in labelling.labelled.spans}
        if not self._layers:
            raise BadInput("PairwiseEnergy finds no labelled weight of a Linear or Conv2d layer: use FirstOrderTaylor")
        # A compiled network runs around the hooks, not through them.
        note, gather = torch.compiler.disable(self._note), torch.compiler.disable(self._gather)
        for name, layer in self._layers.items():
            layer.register_forward_hook(lambda _, given, output, name=name: note(name, given[0], output))
        labelling.model.register_forward_hook(lambda _, given, output: gather(output))

    def curvatures(self, block: Block) -> list[LayerCurvature]:
        """Return the curvatures of the layers in a block; empty before the first gathering."""
        return self._curvatures.get(block.start, [])

    def diagonal(self, block: Block) -> Tensor | None:
        """Return the curvature of each weight by itself, (m,); None before the first gathering."""
        return self._diagonals.get(block.start)

    def value(self, p: Distribution) -> Tensor:
        block, mean = p.block, p.mean()
        value = block.g @ mean
        if (diagonal := self.diagonal(block)) is None:
            return value
        change = mean - block.w
        return value + (change @ self._times_curvature(block, change) + diagonal @ p.variance()) / 2

    def gradient(self, p: Distribution) -> Gradient:
        # At the present distribution the expected weights are w^k: only the variances add to the first order's.
        block = p.block
        if (diagonal := self.diagonal(block)) is None:
            return Gradient(weights=block.g)
        if block.scales is not None:
            diagonal = block.scaled(block.scaled(diagonal.clone()))
        q = block.q[:, None]
        return Gradient(weights=block.g, marginals=diagonal * q * (q / 2 - block.q @ p.probabilities()))

    def _times_curvature(self, block: Block, change: Tensor) -> Tensor:
        product = torch.zeros_like(change)
        if (diagonal := self.diagonal(block)) is not None:
            torch.mul(diagonal, change, out=product)  # right for what has no layer's curvature
        for layer in self.curvatures(block):
            layer.write(product, layer.g[..., None] * (layer.read(change) @ layer.a))
        return product

    def state_dict(self) -> dict[str, Any]:
        trees = {name: [tree.parents for tree in trees] for name, trees in self._trees.items()}
        return {"forwards": self._forwards, "mass": self._mass, "averages": self._averages, "trees": trees}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._forwards, self._mass = state["forwards"], state["mass"]
        device = self._labelling.labelled.w.device
        self._averages = {name: [t.to(device) for t in tensors] for name, tensors in state["averages"].items()}
        self._trees = {name: [SpanningTree(p, device) for p in trees] for name, trees in state["trees"].items()}
        self._rebuild()

    def _learning(self) -> bool:
        return self._labelling.model.training and torch.is_grad_enabled()

    def _note(self, name: str, inputs: Tensor, output: Tensor) -> Tensor | None:
        if not self._learning() or self._forwards % self.interval:
            return None
        self._seen[name] = (inputs.detach(), output)
        return output.clone()  # for the network to go on with, in place if it likes

    def _gather(self, logits: Tensor) -> None:
        """Bring a noted batch into the averages, once its forward has ended."""
        if not self._learning():
            return
        self._forwards += 1
        if not self._seen:
            return
        if not self._finite(logits):
            self._seen.clear()  # the trainer will find that the loss is not a number, and say so
            return
        names = list(self._seen)
        layers, outputs = [self._layers[name] for name in names], [self._seen[name][1] for name in names]
        output_curvatures = output_curvature(layers, outputs, logits / self.temperature, self.samples)
        with torch.no_grad():
            for name, layer, g in zip(names, layers, output_curvatures, strict=True):
                inputs, output = self._seen[name]
                kept = self._labelling.labelled.w.dtype  # wider than the layer's own if that is half precision
                a = second_moments(layer, inputs.to(kept), sample_pixels=True)
                positions = torch.full((1,), output.numel() / (len(output) * len(g)), dtype=a.dtype, device=a.device)
                self._average(name, [a, g.view(groups(layer), -1).to(kept), positions])
            self._mass = self.decay * self._mass + 1 - self.decay
            self._rebuild()
        self._seen.clear()

    def _finite(self, logits: Tensor) -> bool:
        """Return whether the outputs are finite on all ranks. Waits for the device."""
        return not present_team().total((~logits.isfinite()).sum()).item()

    def _average(self, name: str, new: list[Tensor]) -> None:
        present_team().average(new)  # the same curvature on all ranks, or their labels would part
        old = self._averages.get(name) or [torch.zeros_like(tensor) for tensor in new]
        self._averages[name] = [a.lerp(b, 1 - self.decay) for a, b in zip(old, new, strict=True)]

    def _rebuild(self) -> None:
        """Compute curvatures and diagonals of the blocks from the averages."""
        spans = self._labelling.labelled.spans
        for block in self._labelling.blocks:
            self._curvatures[block.start], diagonal = [], torch.zeros_like(block.w)
            for name, averages in self._averages.items():
                a, g, positions = (tensor / self._mass for tensor in averages)
                g, bias = g * self.strength, f"{name.removesuffix('weight')}bias"
                if self._labelling.block_of(name) is block:
                    start = spans[name][0] - block.start
                    trees = self._trees.setdefault(name, [])
                    trees += [SpanningTree.strongest(group) for group in a] if not trees else []
                    found = LayerCurvature(self._layers[name].weight, start, damped(a, self.damping), g, trees)
                    self._curvatures[block.start].append(found)
                    found.write(diagonal, found.diagonal())
                if bias in spans and self._labelling.block_of(bias) is block:
                    first, last = (place - block.start for place in spans[bias])
                    diagonal[first:last] = positions * g.flatten()
            self._diagonals[block.start] = diagonal
