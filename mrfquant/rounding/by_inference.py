"""The solvers that train networks, on a layer's rounding problem."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from mrfquant.config.settings import Count, configurable
from mrfquant.inference import SparsemaxPGD
from mrfquant.inference.base import InferenceRecipe, OptimizerRecipe
from mrfquant.labelling import Labelling
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solvers import Answer, LayerSolver

ADAM = partial(torch.optim.Adam, lr=0.02)


@configurable
class RoundByInference(LayerSolver):
    """An `Inference` of networks at work on a layer: its weights are the network, the energy takes the loss's place.

    Weights are in units of the scales, and the energy of a row in units of its mean curvature, so that one setting of
    the optimizer fits all layers.

    Args:
        inference: builds the solver from labelling and optimizer.
        optimizer: drives its variables.
        steps: how many.
    """

    name = "inference"

    def __init__(
        self, inference: InferenceRecipe = SparsemaxPGD, optimizer: OptimizerRecipe = ADAM, steps: Count = 200
    ) -> None:
        super().__init__([1.0])
        self.inference, self.optimizer, self.steps = inference, optimizer, steps

    def solve_scaled(self, problem: LayerProblem, start: Tensor | None) -> Answer:
        w = problem.w if start is None else problem.values(start)
        zero = torch.zeros_like(w) if problem.zero is None else problem.zero
        layer = nn.ParameterDict({"w": nn.Parameter((w - zero) / problem.scale)})
        unit = problem.a.diagonal().mean() * problem.scale.square().mean(0)
        with torch.enable_grad():
            solver = self.inference(Labelling(layer, problem.levels.tolist()), self.optimizer, start="weights")
            solver.prepare(self.steps)
            for _ in range(self.steps):
                (problem.energy(layer["w"] * problem.scale + zero) / unit).sum().backward()
                solver.step()
        ((block, x),) = solver.items()
        labels = solver.labels(block, x).view(w.shape).long()
        return labels, problem.refit_scales(labels)
