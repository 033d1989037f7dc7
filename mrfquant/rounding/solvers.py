"""Solvers of a layer's rounding problem. Each returns labels and a problem whose scales fit them."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Annotated

import torch
from torch import Tensor

from mrfquant.config.settings import Check, Count, Fraction, Positive, Whole, configurable
from mrfquant.pairwise.trees import SpanningTree
from mrfquant.rounding.problem import LayerProblem

Scales = Annotated[
    Sequence[float], Check(lambda v: v and all(0 < x < math.inf for x in v), "a list of numbers above 0, as [1.0]")
]
Answer = tuple[Tensor, LayerProblem]  # labels (n, rows), and the problem with their scales

SCALE_FACTORS = (0.9, 1.0, 1.15, 1.3)
JOINT_ROUNDS = 10  # rounds of labels for given scales, then scales for labels
NUMBA = find_spec("numba") is not None
MIN_COMPILED_SIZE = 64  # variables of a row below which torch is as fast: small problems need not wait for numba
ROWS_PER_THREAD = 16
MAX_SWEEPS = 1000  # more than any row takes
MAX_TREE_TENSOR = 2**27  # numbers in the largest tensor of a tree's moves
MIN_GAIN = 1e-5  # smaller gains, in units of the squared scale times the curvature, are floating-point errors


class LayerSolver(ABC):
    """Chooses the labels of a layer."""

    name: str

    @abstractmethod
    def solve(self, problem: LayerProblem) -> Answer:
        """Find labels (n, rows) of low energy, and the problem with the scales that suit them."""


@configurable
class RoundNearest(LayerSolver):
    """The nearest level, each weight by itself."""

    name = "nearest"

    def solve(self, problem: LayerProblem) -> Answer:
        labels = problem.nearest(problem.w)
        return labels, problem.refit_scales(labels)


@configurable
class RoundGPTQ(LayerSolver):
    """Greedy with error feedback (Frantar et al., 2023).

    One weight after the other takes its nearest level, and the remaining real weights compensate for the error.

    Args:
        scales: factors of each row's initial scale; all are tried, and the best of each row is kept. In the end scales
            are fitted to the labels.
        by_activation: take the inputs with the largest second moment first, instead of in their order.
    """

    name = "gptq"

    def __init__(self, scales: Scales = (1.0,), by_activation: bool = False) -> None:
        self.scales, self.by_activation = tuple(scales), by_activation

    def solve(self, problem: LayerProblem) -> Answer:
        # Candidates are further rows of one problem, which is faster than several problems.
        return best_of_rows(self._greedy(problem.scaled(self.scales)), len(self.scales))

    def _greedy(self, problem: LayerProblem) -> Answer:
        """Find labels from the problem's scales, one variable after the other."""
        order = torch.arange(problem.n, device=problem.w.device)
        if self.by_activation:
            order = problem.a.diagonal().argsort(descending=True)
        ordered = problem.permuted(order)
        # Row j of the upper factor of the inverse says how the variables after j compensate for an error of j.
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(ordered.a.double()))
        factor = torch.linalg.cholesky(inverse, upper=True).to(problem.w.dtype)
        w, labels = ordered.w.clone(), torch.empty_like(ordered.w, dtype=torch.int64)
        for j in range(problem.n):
            labels[j] = ordered.nearest(w[j], j)
            error = (w[j] - ordered.values(labels[j], j)) / factor[j, j]
            w[j + 1 :].addr_(factor[j, j + 1 :], error, alpha=-1)
        labels = labels[order.argsort()]
        return labels, problem.refit_scales(labels)


@configurable
class RoundICM(LayerSolver):
    """Iterated conditional modes, from gptq's answer by activation.

    Each weight takes its best level given the others, and each row its best scale, until nothing changes; then again
    after random kicks.

    Args:
        scales: of gptq.
        kicks: number of kicks, which move some labels to a neighbour at random; each row keeps its best labels.
        kicked: the fraction of the labels that a kick moves.
    """

    name = "icm"

    def __init__(self, scales: Scales = SCALE_FACTORS, kicks: Whole = 50, kicked: Fraction = 0.005) -> None:
        self.scales, self.kicks, self.kicked = tuple(scales), kicks, kicked

    def solve(self, problem: LayerProblem) -> Answer:
        return self.improve(*RoundGPTQ(self.scales, by_activation=True).solve(problem))

    def improve(self, labels: Tensor, problem: LayerProblem) -> Answer:
        """Go on from labels (n, rows) at the problem's scales; the energy never rises."""
        labels, problem = descend(problem, labels)
        if self.kicks:
            labels, problem = descend(problem, _kick_and_descend(problem, labels, self.kicks, self.kicked))
        return labels, problem


@configurable
class RoundMeanField(LayerSolver):
    """Annealed sequential mean-field, from the trained weights; it ends with `icm`.

    The mean of each variable is that of softmax(-beta E), given the means of the others. Its scales are those of gptq's
    best answer.

    Args:
        scales: of gptq.
        sweeps: number of sweeps over all variables.
        hottest: the first inverse temperature, in units of 1 / (mean diagonal of A x squared gap of the levels).
        coldest: the last one; geometric between them.
    """

    name = "mean_field"

    def __init__(
        self,
        scales: Scales = SCALE_FACTORS,
        sweeps: Count = 40,
        hottest: Positive = 2.0,
        coldest: Positive = 300.0,
    ) -> None:
        self.scales, self.sweeps, self.hottest, self.coldest = tuple(scales), sweeps, hottest, coldest

    def solve(self, problem: LayerProblem) -> Answer:
        _, problem = RoundGPTQ(self.scales, by_activation=True).solve(problem)
        means = problem.w.clone()
        for beta in self.betas(problem):
            mean_field_sweep(problem, means, beta)
        return RoundICM().improve(problem.nearest(means), problem)

    def betas(self, problem: LayerProblem) -> Iterator[Tensor]:
        """Yield the inverse temperatures of the rows, (rows,), of each sweep."""
        gap = (problem.levels[-1] - problem.levels[0]) / (len(problem.levels) - 1) * problem.scale.abs().mean(0)
        unit = 1 / (problem.a.diagonal().mean() * gap.square())
        for k in range(self.sweeps):
            yield unit * self.hottest * (self.coldest / self.hottest) ** (k / max(1, self.sweeps - 1))


@configurable
class RoundTree(RoundMeanField):
    """Moves along the maximum spanning tree of |A|, from the answers of mean-field and of `icm`.

    Until none lowers the energy: the best labels of the whole tree by max-product, with the other couplings at the
    present labels, and the best labels of both ends of every edge. Where all couplings lie on the tree, it is exact.

    The tree is used at zero temperature only: annealed with its correlations, means overshoot on dense couplings.
    """

    name = "tree"

    def __init__(
        self,
        scales: Scales = SCALE_FACTORS,
        sweeps: Count = 15,
        hottest: Positive = 2.0,
        coldest: Positive = 300.0,
    ) -> None:
        super().__init__(scales, sweeps, hottest, coldest)

    def solve(self, problem: LayerProblem) -> Answer:
        one, other = super().solve(problem), RoundICM(self.scales).solve(problem)
        labels, both = torch.cat([one[0], other[0]], 1), one[1].beside(other[1])
        return best_of_rows(descend(both, labels, SpanningTree.strongest(problem.a)), 2)


def best_of_rows(answer: Answer, count: int) -> Answer:
    """Choose the one of least energy among `count` candidates for each row, which follow each other as further rows."""
    labels, problem = answer
    energy = problem.energy(problem.values(labels)).view(count, -1)
    rows = energy.argmin(0) * energy.shape[1] + torch.arange(energy.shape[1], device=energy.device)
    return labels[:, rows], problem.rows(rows)


def mean_field_sweep(problem: LayerProblem, means: Tensor, beta: Tensor) -> None:
    """Update the means (n, rows) in place, each given the others, at beta (rows,): never increases the free energy."""
    diagonal = problem.a.diagonal()

    def update(j: int, field: Tensor) -> Tensor:
        q, others = problem.choices(j), field - diagonal[j] * means[j]
        return ((-beta * q * (others + diagonal[j] / 2 * q)).softmax(0) * q).sum(0)

    problem.sweep(means, update)


def descend(problem: LayerProblem, labels: Tensor, tree: SpanningTree | None = None) -> Answer:
    """Alternate label moves and least squares for the scales, until no move lowers the energy.

    Moves are of single variables; with a tree, also along its edges and of the whole tree.
    """
    labels, fitted = labels.clone(), problem
    active = torch.arange(labels.shape[1], device=labels.device)  # rows that may still change
    for _ in range(JOINT_ROUNDS):
        part, before = fitted.rows(active).refit_scales(labels[:, active]), labels[:, active]
        after = _descend_labels(part, before)
        if tree is not None:
            some = max(1, MAX_TREE_TENSOR // (len(part.levels) ** 2 * part.n))
            rows = torch.arange(len(active), device=labels.device).split(some)
            after = torch.cat([_tree_moves(part.rows(index), after[:, index], tree) for index in rows], 1)
        labels[:, active], fitted = after, fitted.with_rows(active, part)
        active = active[(after != before).any(0)]
        if not len(active):
            break
    return labels, fitted.refit_scales(labels)


def _descend_labels(problem: LayerProblem, labels: Tensor) -> Tensor:
    """Give each variable its best level given the others, one after the other, until none gains anything."""
    if _can_compile(problem):
        return _descend_compiled(problem, labels)
    labels = labels.clone()
    active = torch.arange(labels.shape[1], device=labels.device)  # rows that may still change
    while len(active):
        part, before = problem.rows(active), labels[:, active]
        values = part.values(before)
        _descend_once(part, values)
        after = part.nearest(values)
        labels[:, active] = after
        active = active[(after != before).any(0)]
    return labels


def _kick_and_descend(problem: LayerProblem, labels: Tensor, kicks: int, share: float) -> Tensor:
    """Repeat `_descend_labels` from the best labels so far, with a fraction of them moved."""
    moves = max(1, round(share * problem.n))
    if _can_compile(problem):
        return _descend_compiled(problem, labels, kicks, moves)
    generator = torch.Generator().manual_seed(0)  # the same answer at every call
    rows = torch.arange(labels.shape[1], device=labels.device)
    for _ in range(kicks):
        trial = labels.clone()
        drawn = torch.randint(problem.n, (moves, len(rows)), generator=generator).to(labels.device)
        steps = 2 * torch.randint(2, (moves, len(rows)), generator=generator).to(labels.device) - 1
        for j, step in zip(drawn, steps, strict=True):
            trial[j, rows] = (trial[j, rows] + step).clamp(0, len(problem.levels) - 1)
        trial = _descend_labels(problem, trial)
        better = problem.energy(problem.values(trial)) < problem.energy(problem.values(labels))
        labels = torch.where(better, trial, labels)
    return labels


def _descend_once(problem: LayerProblem, values: Tensor) -> None:
    """Give each variable of values (n, rows) its best level given the others, once."""
    curvature = problem.a.diagonal()

    def update(j: int, field: Tensor) -> Tensor:
        new = problem.values(problem.nearest(values[j] - field / curvature[j], j), j)
        change = new - values[j]
        gain = -change * (field + curvature[j] / 2 * change)
        return torch.where(gain > MIN_GAIN * problem.scale[j].square() * curvature[j], new, values[j])

    problem.sweep(values, update)


def _can_compile(problem: LayerProblem) -> bool:
    """Return whether compiled loops are there and worth it."""
    return NUMBA and problem.n >= MIN_COMPILED_SIZE and problem.w.device.type == "cpu"


def _descend_compiled(problem: LayerProblem, labels: Tensor, kicks: int = 0, moves: int = 0) -> Tensor:
    """Do what both do in compiled loops; kicks are others, since they are drawn row by row."""
    from mrfquant.kernels.descent import descend_rows
    from mrfquant.kernels.jit import parallel_ranges

    chosen = labels.T.contiguous()
    fields = ((problem.values(labels) - problem.w).T @ problem.a).contiguous()
    tensors = (problem.a.contiguous(), fields, chosen, problem.levels, problem.scale.T.contiguous())
    loop = functools.partial(descend_rows, *(t.numpy() for t in tensors), MIN_GAIN, MAX_SWEEPS, kicks, moves)
    parallel_ranges(loop, len(chosen), ROWS_PER_THREAD)
    return chosen.T.contiguous()


def _tree_moves(problem: LayerProblem, labels: Tensor, tree: SpanningTree) -> Tensor:
    """Choose the best labels of the whole tree, in the rows where they are better; then those of its edges.

    Couplings off the tree are at the present labels; an edge is two neighbours in the tree, given the others.
    """
    errors, diagonal = problem.values(labels) - problem.w, problem.a.diagonal()[:, None]
    couplings, fields = torch.zeros_like(errors), problem.a @ errors - diagonal * errors
    for below, above in tree.levels:
        strength = problem.a[below, above][:, None]
        couplings[below] = strength.expand(-1, errors.shape[1])
        fields[below] -= strength * errors[above]
        fields.index_add_(0, above, strength * errors[below], alpha=-1)
    x = problem.choices() - problem.w
    logits = -(x * fields + diagonal / 2 * x.square())
    moved = tree.max_product(logits, x, couplings)
    better = problem.energy(problem.values(moved)) < problem.energy(problem.values(labels))
    return _pair_moves(problem, torch.where(better, moved, labels), tree.edges)


def _pair_moves(problem: LayerProblem, labels: Tensor, edges: list[tuple[int, int]]) -> Tensor:
    """Choose the best labels of both ends of every edge, jointly, given the others; one sweep."""
    labels, values, d = labels.clone(), problem.values(labels), len(problem.levels)
    fields = problem.a @ (values - problem.w)
    for edge in edges:
        pair = list(edge)
        among = problem.a[pair][:, pair]
        others = fields[pair] - among @ values[pair]
        p, q = problem.choices(edge[0]), problem.choices(edge[1])
        first = p * others[0] + among[0, 0] / 2 * p.square()
        second = q * others[1] + among[1, 1] / 2 * q.square()
        energies = first[:, None] + second + among[0, 1] * p[:, None] * q
        best = energies.flatten(0, 1).argmin(0)
        new = torch.stack([best // d, best % d])
        rows = (new != labels[pair]).any(0).nonzero()[:, 0]
        if len(rows):
            labels[pair] = new
            change = torch.stack([problem.values(new[k], j) for k, j in enumerate(edge)]) - values[pair]
            values[pair] += change
            fields[:, rows] += problem.a[:, pair] @ change[:, rows]
    return labels
