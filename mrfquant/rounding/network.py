"""Rounding a trained network, layer by layer; each layer meets its inputs as the rounded layers before it make them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from mrfquant.config.settings import Check, Fraction, configurable
from mrfquant.data import Dataset
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling import LevelSet
from mrfquant.pairwise.curvature import Layer, curved_layers, damped, pixels_drawn, second_moments, weight_matrices
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solvers import SOLVERS, RoundGPTQ

BatchNorm = nn.modules.batchnorm._BatchNorm
RANK_DAMPING = 0.1  # where there are fewer inputs than weights of a row
Several = Annotated[int, Check(lambda v: v > 1, "a whole number above 1")]
SolverName = Annotated[str, Check(lambda v: v in SOLVERS, f"one of {', '.join(SOLVERS)}")]
Batches = Callable[[], Iterator[Tensor]]  # the calibration images, from the first at each call


@dataclass(frozen=True)
class LayerReport:
    """How a layer was rounded.

    Attributes:
        name: of its weight.
        rows: of its weight matrix.
        n: columns of its weight matrix.
        energy: half the mean squared change of its outputs.
        relative: that over gptq's on the same layer.
        changed: share of the labels that differ from gptq's.
        seconds: taken by the solver.
    """

    name: str
    rows: int
    n: int
    energy: float
    relative: float
    changed: float
    seconds: float


@configurable
class Rounding:
    """The settings, and the walk over the layers.

    Args:
        solver: what assigns the labels of a layer; settings of its own are those of RoundICM, RoundMeanField and so on.
        start: the solver from whose answer it starts; None is the solver's own way to start.
        images: of the training set, to calibrate with.
        batch_size: of them at a time.
        damping: added to the diagonal of the second moments, as a share of its mean.
        recalibrate: normalise by the statistics that the rounded network has, while rounding and afterwards.
    """

    def __init__(
        self,
        solver: SolverName = "tree",
        start: SolverName | None = None,
        images: Several = 2000,
        batch_size: Several = 250,
        damping: Fraction = 0.01,
        recalibrate: bool = True,
    ) -> None:
        if start and solver in ("nearest", "gptq"):
            raise BadSetting("Rounding.start", start, f"None: {solver} takes every weight anew, wherever it starts")
        self.solver, self.start = SOLVERS[solver](), SOLVERS[start]() if start else None
        self.images, self.batch_size, self.damping, self.recalibrate = images, batch_size, damping, recalibrate

    def batches(self, dataset: Dataset) -> Iterator[Tensor]:
        """The first inputs of the training split, without augmentation."""
        left = self.images
        for inputs, _ in dataset.ordered("train", self.batch_size):
            if min(left, len(inputs)) > 1:  # batch norm needs more than one
                yield inputs[:left]
            left -= len(inputs)
            if left <= 0:
                return

    @torch.no_grad()
    def run(
        self,
        model: nn.Module,
        levels: Mapping[str, LevelSet],
        batches: Batches,
        report: Callable[[LayerReport], None],
        warn: Callable[[str], None],
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Round weights of the model in place, in the order in which they are used.

        Args:
            model: holds the trained weights.
            levels: of each weight to round, by its name.
            batches: gives the calibration images, from the first at each call.
            report: called when a layer is done.
            warn: called with a sentence where the images are too few.

        Returns:
            For each weight its labels, in its shape, and the scales of its rows.
        """
        mode = model.training
        model.eval()
        norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats and self.recalibrate]
        answers = {}
        for name, layer in _in_order(model, levels, batches).items():
            for norm in norms:
                norm.train()
            moments, inputs = _moments(model, name, layer, batches)
            damping, n = self.damping, moments.shape[-1]
            if inputs < n and damping < RANK_DAMPING:
                damping = RANK_DAMPING
                warn(f"{name}: {inputs:,} inputs are few for {n:,} weights a row; damped by {damping:.0%}, give more")
            q = layer.weight.new_tensor(levels[name].values)
            try:
                a = damped(moments, damping)
                labels, scale, found = self._round(name, weight_matrices(layer, layer.weight), a, q)
            except torch.linalg.LinAlgError:
                raise BadInput(f"the second moments of {name}'s inputs are singular: raise Rounding.damping") from None
            answers[name] = labels.view(layer.weight.shape), scale
            layer.weight.copy_(q[answers[name][0]] * scale.view(-1, *[1] * (layer.weight.dim() - 1)))
            report(found)
        if norms:
            _estimate_statistics(model, norms, batches)
        model.train(mode)
        return answers

    def _round(self, name: str, weights: Tensor, a: Tensor, q: Tensor) -> tuple[Tensor, Tensor, LayerReport]:
        """Labels (rows of all groups, n) and scales of one layer, given weights (groups, rows, n)."""
        labels, scales, seconds = [], [], 0.0
        energy = reference = changed = 0.0
        for w, moments in zip(weights, a, strict=True):
            problem = LayerProblem.of(w.T.contiguous(), moments, q)
            began = time.perf_counter()
            start = None if self.start is None else self.start.solve(problem)
            chosen, scale = self.solver.solve(problem, start)
            seconds += time.perf_counter() - began
            greedy, greedy_scale = RoundGPTQ(scales=(1.0,), by_activation=False).solve(problem)  # as published
            energy += replace(problem, scale=scale).energy(q[chosen] * scale).sum().item()
            reference += replace(problem, scale=greedy_scale).energy(q[greedy] * greedy_scale).sum().item()
            changed += (chosen != greedy).sum().item()
            labels.append(chosen.T)
            scales.append(scale)
        rows, n = weights.shape[0] * weights.shape[1], weights.shape[2]
        found = LayerReport(name, rows, n, energy, energy / max(reference, 1e-300), changed / weights.numel(), seconds)
        return torch.cat(labels), torch.cat(scales), found


def check_can_be_rounded(model: nn.Module, labelled: Mapping[str, object]) -> None:
    """Refuse parameters to round that are not the weight of a linear or convolutional layer."""
    fit = curved_layers(model)
    for name in labelled:
        if name not in fit:
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise BadInput(
                f"{name} belongs to a {owner}, only Linear and Conv2d can be rounded: leave it out, --exclude {name!r}"
            )


class _Reached(Exception):
    """The layer in question has its inputs: the rest of the forward is not needed."""


def _in_order(model: nn.Module, levels: Mapping[str, LevelSet], batches: Batches) -> dict[str, Layer]:
    """The layers to round in the order of their first use."""
    check_can_be_rounded(model, levels)
    layers = {name: layer for name, layer in curved_layers(model).items() if name in levels}
    used: dict[str, Layer] = {}
    hooks = [
        layer.register_forward_hook(lambda *_, name=name, layer=layer: used.setdefault(name, layer) and None)
        for name, layer in layers.items()
    ]
    try:
        model(next(batches())[:2])
    finally:
        for hook in hooks:
            hook.remove()
    for name in layers:
        if name not in used:
            raise BadInput(f"{name} is not used in the network's forward: leave it out, --exclude {name!r}")
    return used


def _moments(model: nn.Module, name: str, layer: Layer, batches: Batches) -> tuple[Tensor, int]:
    """The mean second moments of a layer's inputs, (groups, n, n), and the number of inputs they are made of."""
    total, count, images = layer.weight.new_zeros(()), 0, 0

    def look(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total, count
        x = given[0]
        if not x.isfinite().all():
            raise BadInput(f"the inputs of {name} are not finite: the trained network or the images are broken")
        total = total + second_moments(layer, x, sample_pixels=True) * len(x)
        positions = output[0].numel() // len(layer.weight)
        count += len(x) * (pixels_drawn(layer, positions) if isinstance(layer, nn.Conv2d) else positions)
        raise _Reached

    hook = layer.register_forward_hook(look)
    try:
        for batch in batches():
            images += len(batch)
            try:
                model(batch)
            except _Reached:
                continue
    finally:
        hook.remove()
    return total / images, count


def _estimate_statistics(model: nn.Module, norms: list[BatchNorm], batches: Batches) -> None:
    """Set the running statistics of batch norm to their mean over the calibration images."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    for batch in batches():
        model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
