"""The solvers that train networks, on a factor graph."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor, nn

from mrfquant.config.settings import configurable
from mrfquant.errors import BadSetting
from mrfquant.inference import ProximalMeanField
from mrfquant.inference.base import InferenceRecipe, OptimizerRecipe
from mrfquant.labelling import Labelling
from mrfquant.mrf.energy import FactorGraphEnergy
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.solver import FieldSolver

PENALTY = 1e3  # for what is forbidden: large, and not so large that a gradient step leads nowhere
DESCENT = partial(torch.optim.SGD, lr=0.1)
LARGEST_LOG_U = 20.0  # the largest |log u| that a warm start takes over


@configurable(supplied=["graph", "seed", "start"])
class Relaxation(FieldSolver):
    """An `Inference` of networks at work on a factor graph, whose expected energy takes the loss's place.

    Args:
        inference: builds the solver from labelling, optimizer and energy; it must have a u.
        optimizer: drives its variables.
    """

    direction = "lower bound"

    def __init__(
        self,
        graph: FactorGraph,
        seed: int = 0,
        start: Tensor | None = None,
        inference: InferenceRecipe = ProximalMeanField,
        optimizer: OptimizerRecipe = DESCENT,
    ) -> None:
        super().__init__(graph, seed, start)
        if "energy" not in inspect.signature(inference).parameters:
            raise BadSetting("Relaxation.inference", inference, "a solver that takes an energy, as @ProximalMeanField")
        model, levels = nn.ParameterDict(), {}
        for c in graph.by_cardinality:  # names sort like the cardinalities: a ParameterDict may sort them
            name = f"labels{c.labels:09}"
            model[name] = nn.Parameter(torch.zeros(len(c.variables), dtype=graph.dtype, device=graph.device))
            levels[name] = _levels(c.labels)
        with torch.random.fork_rng(devices=[graph.device] if graph.device.type == "cuda" else []):
            torch.manual_seed(seed)
            energy = FactorGraphEnergy(graph.without_hard_constraints(PENALTY))
            form = "line" if all(c.labels == 2 for c in graph.by_cardinality) else "planes"  # half the numbers
            self.inference = inference(Labelling(model, levels), optimizer, energy=energy, form=form)
        if start is not None:
            self._warm(start)
        self._u = self._read()

    def step(self) -> float:
        before, beta = self._state(), self.inference.beta
        self.inference.step()
        self._u = self._read()
        moves = [(new - old).abs().max().item() for new, old in zip(self._state(), before, strict=True)]
        annealing = self.inference.beta != beta  # at rest only once beta is
        return max([*moves, float(annealing)])

    def marginals(self) -> Tensor:
        return self._u

    def labels(self) -> Tensor:
        labels = torch.empty_like(self.graph.cardinalities)
        for c, (block, x) in zip(self.graph.by_cardinality, self.inference.items(), strict=True):
            labels[c.variables] = self.inference.labels(block, x).long()
        return labels

    def log_z(self) -> float:
        return self.graph.factorised_bound(self._u)

    def _state(self) -> list[Tensor]:
        """Return the tensors that have to come to rest: u, or the auxiliary variables where u is always a vertex."""
        return [self._u] if self.inference.relaxed else [x.clone() for x in self.inference.variables]

    def _read(self) -> Tensor:
        return torch.cat([p.probabilities().reshape(-1) for p in self.inference.distributions() or ()])

    def _warm(self, start: Tensor) -> None:
        with torch.no_grad():
            for c, x in zip(self.graph.by_cardinality, self.inference.variables, strict=True):
                log_u = c.planes(start).log().clamp(min=-LARGEST_LOG_U)
                x.copy_((log_u[1] - log_u[0]) / 2 if x.dim() == 1 else log_u)  # of a pair, half the difference
            self.inference.write_all()


def _levels(labels: int) -> list[float]:
    """Levels that stand for the labels; which numbers they are, and their order, plays no role."""
    return [-1.0, 1.0] if labels == 2 else [float(label) for label in range(labels)]
