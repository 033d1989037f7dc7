"""Deciding the labels of a network that is in training, those of a layer together."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrfquant.config.settings import Fraction, configurable
from mrfquant.errors import BadInput
from mrfquant.inference import Inference
from mrfquant.labelling import weights_of
from mrfquant.rounding.answers import Journal, LayerReport, RoundedWeight
from mrfquant.rounding.call import ROUNDABLE, plain_call
from mrfquant.rounding.layer_statistics import LayerStatistics
from mrfquant.rounding.network import Rounding
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.replay import Forward, Replay
from mrfquant.rounding.solvers import RoundICM, RoundMeanField


@configurable(supplied=["batches", "forward"])
class Jointly:
    """Chooses the labels of a solver's network, for `Inference.finalize` and `Inference.adopt`.

    Rounded one by one, each weight takes its likeliest label, whatever the others do. Here the labels of a layer are
    those of low energy 1/2 (w - w°)ᵀ A (w - w°), row by row, as where trained networks are rounded
    (`mrfquant.round_network`): w° are the weights that give the outputs of the relaxed network, at the inputs that the
    layers before make of theirs by now. Levels have the scales of the labelling. Of layers that are no products of
    weights and inputs, and of biases, each takes its likeliest label; the moments of batch norm follow.

    Args:
        batches: of inputs to calibrate with, in any form that `forward` takes; None where each call brings its own.
        weights: which may take another label than their likeliest: the 'undecided', or 'all'.
        threshold: a weight is decided if a label has this probability.
        rounding: its settings; the solver is 'icm', 'mean_field' or 'tree'. Scales are the labelling's.
        forward: computes a batch, as for `mrfquant.round_network`.

    Attributes:
        layers: how each layer was decided the last time: the energy, over that of the likeliest labels, and the share
            of labels that differ from these.
    """

    def __init__(
        self,
        batches: Iterable[Any] | None = None,
        weights: Literal["undecided", "all"] = "undecided",
        threshold: Fraction = 0.99,
        rounding: Rounding | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        self.batches, self.weights, self.threshold = list(batches or ()), weights, threshold
        self.rounding = rounding or Rounding()
        if not isinstance(self.rounding.solver, (RoundICM, RoundMeanField)):
            name = self.rounding.solver.name
            raise BadInput(f"Jointly cannot go on from labels by {name}: set the solver 'icm', 'mean_field' or 'tree'")
        self.forward: Forward = forward or plain_call
        self.layers: list[LayerReport] = []

    @torch.no_grad()
    def __call__(self, inference: Inference, batches: Iterable[Any] | None = None) -> list[Tensor]:
        """The labels, int32 (m,) of every block; the network keeps the weights that it has, while the
        moments of batch norm are those for the labels.

        Args:
            inference: the solver.
            batches: to calibrate with; those of the constructor by default.
        """
        labelling, self.layers = inference.labelling, []
        if labelling.sharded:
            raise BadInput("Jointly works on whole layers, which shard cuts: drop one")
        flat = labelling.labelled
        likeliest = [inference.labels(*item) for item in inference.items()]
        labels = torch.cat(likeliest).long()
        free = self._free(inference, labels)
        values = torch.cat([b.q[chosen.long()] for b, chosen in zip(labelling.blocks, likeliest, strict=True)])
        scale = torch.ones_like(values) if labelling.scale is None else labelling.scale
        selected = weights_of(*ROUNDABLE)(labelling.model)
        levels = {name: labelling.block_of(name).levels for name in flat.spans if name in selected}
        others = {name: flat.view(name, values * scale) for name in flat.spans if name not in levels}

        def solve(moments: LayerStatistics) -> tuple[RoundedWeight, LayerReport]:
            own = [flat.view(moments.name, vector) for vector in (labels, scale, free)]
            return self._solve(moments, levels[moments.name].values, *own)

        given = self.batches if batches is None else list(batches)
        kept, replay = flat.w.clone(), Replay(labelling.model, self.forward, given, self.rounding.seed)
        try:
            found = self.rounding.round_layers(
                replay, labelling.model, levels, solve, self.layers.append, Journal(), others
            )
        finally:
            flat.w.copy_(kept)
            labelling.publish()
            labelling.mark_clean()
        for name, answer in found.items():
            flat.view(name, labels).copy_(answer.labels)
        return [labels[block.start : block.start + block.m].int() for block in labelling.blocks]

    def _free(self, inference: Inference, labels: Tensor) -> Tensor:
        """Which weights may take another label: bool (m,)."""
        if self.weights == "all":
            return torch.ones_like(labels, dtype=torch.bool)
        if (decided := inference.decided(self.threshold)) is None:
            raise BadInput(f"{type(inference).__name__} has no distribution over labels: set Jointly.weights = 'all'")
        return ~torch.cat(decided)

    def _solve(
        self, moments: LayerStatistics, levels: tuple[float, ...], given: Tensor, scale: Tensor, free: Tensor
    ) -> tuple[RoundedWeight, LayerReport]:
        """The labels of a weight from given ones, all in its shape, at its scales."""
        began, matrix = time.perf_counter(), moments.form.matrix
        w, before, scales, may = moments.w, matrix(given), matrix(scale), matrix(free)
        after, q = before.clone(), w.new_tensor(levels)
        energy = reference = 0.0
        for rows, sums in moments.parts():
            a = self.rounding.curvature(sums, moments.name, lambda text: warnings.warn(text, stacklevel=2))
            target = sums.targets(w[rows], a).T.contiguous()
            group = torch.zeros(len(target), dtype=torch.int64, device=w.device)
            scale_of, start = scales[rows].T.to(w.dtype).contiguous(), before[rows].T.contiguous()
            problem = LayerProblem(target, a, q, scale_of, group, free=may[rows].T.contiguous())
            chosen, _ = self.rounding.solver.solve(problem, (start, problem))
            energy += problem.energy(problem.values(chosen)).sum().item()
            reference += problem.energy(problem.values(start)).sum().item()
            after[rows] = chosen.T
        changed, relative = (after != before).float().mean().item(), energy / max(reference, 1e-300)
        seconds = time.perf_counter() - began
        shape = moments.weight.shape
        answer = RoundedWeight(moments.form.tensor(after, shape), scale)
        return answer, LayerReport(moments.name, len(w), w.shape[1], energy, relative, changed, seconds)
