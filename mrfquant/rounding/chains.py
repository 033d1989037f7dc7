"""Rounding a layer to a trellis: its labels are chains along the rows, coupled densely by the curvature.

Rows are independent given A, so with all other inputs fixed the energy of an input's weights is a sum over rows,

    A_jj / 2  sum over r of  scale_r² (x_r - C[s_r])²,     x_r = (w°_rj - the other errors' field / A_jj) / scale_r,

and the best path through the trellis is the exact conditional mode of the whole column. `RoundChains` takes the columns
greedily with error feedback, the largest inputs first, as gptq takes single weights; then by iterated conditional
modes, with least squares for the scales of the rows between the sweeps.

In layers of few rows the start of a chain and a scale for each column would cost too much: there all columns have one
scale, and one chain runs through them, so that its neighbours' states pin the ends of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet, Trellis, uniform
from mrfquant.labelling.matrices import other_matrices
from mrfquant.labelling.mixing import Mixing
from mrfquant.labelling.trellis import SMALLEST_CHAIN
from mrfquant.packing.chains import PackedChains
from mrfquant.pairwise.paths import best_paths
from mrfquant.rounding.answers import RoundedChains
from mrfquant.rounding.problem import FIELD_BLOCK, LayerProblem
from mrfquant.rounding.solvers import Answer, LayerSolver, RoundGPTQ, RoundICM

FEWEST_ROWS = 128  # rows from which on each column is a chain of its own
LEAST_FREEDOM = 3  # bits of a column for each of those that its neighbours pin at one of its ends
MAX_SWEEPS = 10
LEAST_GAIN = 3e-3  # fraction of the energy that a sweep has to gain to be followed by another


class RoundChains(LayerSolver):
    """The best paths of columns: greedily, then given the others.

    Args:
        trellis: whose paths.
        sweeps: the most sweeps of iterated conditional modes; 0 for the greedy answer.
    """

    name = "chains"

    def __init__(self, trellis: Trellis, sweeps: int = MAX_SWEEPS) -> None:
        self.trellis, self.sweeps = trellis, sweeps

    @classmethod
    def by(cls, solver: LayerSolver, trellis: Trellis) -> RoundChains:
        """Return what stands for a solver of single labels where labels are paths."""
        if isinstance(solver, RoundGPTQ):
            return cls(trellis, 0)
        if isinstance(solver, RoundICM):
            return cls(trellis)
        raise BadInput(
            f"the solver {solver.name} finds single labels: for a trellis take icm, or gptq for greedy paths"
        )

    def round(self, w: Tensor, a: Tensor, shape: torch.Size) -> tuple[RoundedChains, float]:
        """Round weights w (n, rows) of a parameter in the basis where inputs are mixed; return them with their energy.

        a (n, n) has the second moments of its inputs.
        """
        apart = chains_apart(w.shape[1])
        mixing = Mixing.fitted(w, a, each=apart)
        mixed = mixing.weights(w)
        every = torch.zeros(len(w), dtype=torch.int64, device=w.device)
        levels = w.new_tensor(self.trellis.values)
        labels, found = self.solve(LayerProblem(mixed, mixing.moments(a), levels, torch.ones_like(w), every))
        states = self.trellis.state_of_label.to(labels.device)[labels]
        chain = w.shape[1] if apart else w.numel()
        packed = PackedChains.of(states, tuple(shape), self.trellis, chain, found.scale[0], mixing.exponents)
        error = packed.values().flatten(1).T.to(w) - w
        return RoundedChains(packed), ((error * (a @ error)).sum() / 2).item()

    def solve(self, problem: LayerProblem) -> Answer:
        apart = chains_apart(problem.w.shape[1])
        order = torch.arange(problem.n, device=problem.w.device)
        if apart:  # one chain through all inputs takes them as they come: another order would have to be stored
            order = problem.a.diagonal().argsort(descending=True)
        chains = Chains(problem.permuted(order), self.trellis, apart)
        chains.start()
        energies = [chains.energy()]
        for _ in range(self.sweeps):
            chains.sweep()
            energies.append(chains.energy())
            if energies[-2] - energies[-1] < LEAST_GAIN * energies[-1]:
                break
        back = order.argsort()
        return chains.labels[back], chains.problem.permuted(back)


def chains_where_they_fit(
    model: nn.Module, levels: Mapping[str, LevelSet], tell: Callable[[str], None]
) -> dict[str, LevelSet]:
    """Return even levels in the place of a trellis for weights that chains do not suit; `tell` which these are."""
    chosen, others = dict(levels), other_matrices(model)
    for name, of in levels.items():
        if not isinstance(of, Trellis):
            continue
        layer, weight = model.get_submodule(name.rpartition(".")[0]), model.get_parameter(name)
        rows, least = len(weight), -(-LEAST_FREEDOM * (of.memory - of.bits) // of.bits)
        reason = ""
        if getattr(layer, "groups", 1) > 1 or getattr(layer, "transposed", False) or name in others:
            reason = "a chain goes through rows that share their inputs"
        elif weight.numel() < SMALLEST_CHAIN:
            reason = f"it has {weight.numel()} weights, fewer than the {SMALLEST_CHAIN} that a chain needs"
        elif rows < least:
            reason = f"its {rows} rows are fewer than the {least} that a memory of {of.memory} needs"
        if reason:
            tell(f"{name} has even levels of {of.bits} bits in the place of a trellis: {reason}")
            chosen[name] = uniform(of.bits)
    return chosen


def chains_apart(rows: int) -> bool:
    """Return whether the columns of a layer with so many rows are chains of their own, instead of one chain."""
    return rows >= FEWEST_ROWS


class Chains:
    """Paths of the columns of a problem.

    Attributes:
        problem: with the scales of the rows.
        states: (n, rows) the path of each column.
    """

    def __init__(self, problem: LayerProblem, trellis: Trellis, apart: bool) -> None:
        self.trellis, self.apart = trellis, apart
        self.table = trellis.table.to(problem.w)
        size = problem.w.square().mean(0, keepdim=True).sqrt()
        size = size.clamp(min=max(1e-6 * size.max().item(), torch.finfo(size.dtype).tiny))  # for rows of zeros
        self.problem = problem.with_scales(size, torch.zeros_like(size))
        self.states = torch.empty_like(problem.w, dtype=torch.int64)

    @property
    def labels(self) -> Tensor:
        """The labels (n, rows)."""
        return self.trellis.label_of_state.to(self.states.device)[self.states]

    def energy(self) -> float:
        """Return the energy of the present paths."""
        return self.problem.energy(self.table[self.states] * self.problem.scale).sum().item()

    def start(self) -> None:
        """Take the columns greedily with error feedback, twice: the scales of the first answer serve the second."""
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(self.problem.a.double()))
        factor = torch.linalg.cholesky(inverse, upper=True).to(self.problem.w.dtype)
        for _ in range(2):
            self._greedy(factor)
            self._refit()

    def sweep(self) -> None:
        """Give each column the best path given all others, then each row its best scale: never raises the energy."""
        problem, scale = self.problem, self.problem.scale[0]
        curvature = problem.a.diagonal()

        def update(j: int, field: Tensor) -> Tensor:
            values = self.table[self.states[j]]
            self._set_path(j, values - field / (curvature[j] * scale), last=True)
            return self.table[self.states[j]] * scale

        problem.sweep(self.table[self.states] * problem.scale, update)
        self._refit()

    def _greedy(self, factor: Tensor) -> None:
        """Take the best path of one column after the other; the remaining real weights compensate for its error.

        Row j of `factor` says how those after j do it.
        """
        w, scale = self.problem.w.clone(), self.problem.scale[0]
        for start in range(0, len(w), FIELD_BLOCK):
            stop = min(len(w), start + FIELD_BLOCK)
            errors = torch.empty_like(w[start:stop])
            for j in range(start, stop):
                self._set_path(j, w[j] / scale, last=False)
                error = (w[j] - self.table[self.states[j]] * scale) / factor[j, j]
                w[j + 1 : stop].addr_(factor[j, j + 1 : stop], error, alpha=-1)
                errors[j - start] = error
            w[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)

    def _set_path(self, j: int, x: Tensor, last: bool) -> None:
        """Set the path of column j to the best one for x (rows,); `last` says whether those after it stay."""
        first_prefix = last_prefix = None
        if not self.apart and j > 0:
            first_prefix = self.states[j - 1, -1:] & (self.trellis.shared - 1)
        if not self.apart and last and j + 1 < len(self.states):
            last_prefix = self.states[j + 1, :1] >> self.trellis.bits
        weight = self.problem.scale[0].square()
        weight = (weight / weight.mean())[:, None]
        found = best_paths(x[:, None], weight, self.table, self.trellis.bits, first_prefix, last_prefix)
        self.states[j] = found[:, 0]

    def _refit(self) -> None:
        self.problem = self.problem.refit_scales(self.labels)
