"""Annealed importance sampling: log Z with an error bar, where no exact method fits."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.mrf.coordinate import Gibbs
from mrfquant.mrf.factor_graph import FactorGraph
from mrfquant.mrf.learning import with_evidence


class Estimate(NamedTuple):
    """An estimate of log Z, and its standard error."""

    log_z: float
    error: float


class _Heated(Gibbs):
    """Gibbs sampling of p(x)^beta."""

    beta = 0.0

    def answer(self, fields: Tensor, u: Tensor) -> Tensor:
        return super().answer(self.beta * fields, u)


@torch.no_grad()
def sample_log_z(graph: FactorGraph, chains: int = 100, temperatures: int = 200, seed: int = 0) -> Estimate:
    """Estimate log Z by annealed importance sampling (Neal, 2001).

    Chains go from uniform labellings to samples of the field while beta grows from 0 to 1; each collects the weight

        log w = sum_k (beta_k - beta_{k-1}) score(x_k),        Z = E[w] * number of labellings.

    Args:
        graph: a field without hard constraints, whose labellings chains can all reach.
        chains: independent chains; the error falls with their square root.
        temperatures: steps of beta, with a sweep of Gibbs sampling each; too few give an estimate below log Z.
        seed: seed of the chains.
    """
    if graph.hard:
        raise BadInput("annealed importance sampling needs a field without hard constraints: use BeliefPropagation")
    sampler = _Heated(with_evidence(graph, [{}] * chains), seed)
    weights = torch.zeros(chains, dtype=graph.dtype, device=graph.device)
    step = 1 / temperatures
    for k in range(temperatures):
        weights += step * graph.score(sampler.labels().view(chains, -1))
        sampler.beta = (k + 1) * step
        sampler.step()
    shares = weights.softmax(0)
    error = (shares * chains).std().item() / math.sqrt(chains)
    uniform = graph.cardinalities.double().log().sum().item()
    return Estimate(weights.logsumexp(0).item() - math.log(chains) + uniform, error)
