"""Round a trained network layer by layer.

Each layer gets its inputs from the rounded layers before it, and should give the outputs that it has in the float
network.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrfquant.config.settings import Check, Count, Fraction, Whole, configurable
from mrfquant.data import Dataset
from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet, Trellis, uniform
from mrfquant.labelling.matrices import other_matrices
from mrfquant.rounding.answers import AnyRounded, Journal, LayerReport, RoundedNetwork, RoundedWeight, fingerprint
from mrfquant.rounding.bound import lower_bound
from mrfquant.rounding.chains import RoundChains, chains_where_they_fit
from mrfquant.rounding.layer_statistics import LayerStatistics, RowStatistics
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.replay import Forward, Replay
from mrfquant.rounding.solvers import LayerSolver, RoundGPTQ, RoundICM, RoundMeanField, RoundNearest, RoundTree
from mrfquant.rounding.walk import Walk

SOLVERS: dict[str, type[LayerSolver]] = {
    solver.name: solver for solver in (RoundNearest, RoundGPTQ, RoundICM, RoundMeanField, RoundTree)
}
MOST_AT_ONCE = 2**21  # weights of a layer that are rounded at once: solvers take some twenty times their memory
RANK_DAMPING = 0.1  # where there are fewer inputs than weights of a row
Several = Annotated[int, Check(lambda v: v > 1, "a whole number above 1")]
KNOWN_SOLVER = Check(
    lambda v: isinstance(v, LayerSolver) or v in SOLVERS,
    f"one of {', '.join(SOLVERS)}, or a LayerSolver as @RoundICM()",
)
SolverSetting = Annotated[str | LayerSolver, KNOWN_SOLVER]


@contextmanager
def _one_by_one(model: nn.Module) -> Iterator[None]:
    """Let experts of transformers compute one after the other, each as the linear layer that it is."""
    stacked = any(matrix.stacked for matrix in other_matrices(model).values())
    parts: list[Any] = [m for m in model.modules() if stacked and hasattr(m, "set_experts_implementation")]
    before = [part.get_experts_implementation() for part in parts]
    try:
        for part in parts:
            part.set_experts_implementation("eager")
        yield
    finally:
        for part, implementation in zip(parts, before, strict=True):
            part.set_experts_implementation(implementation)


@configurable
class Rounding:
    """Settings of layer-by-layer rounding.

    Args:
        solver: assigns the labels of a layer: its name, or a `LayerSolver` as @RoundICM(), whose settings are bound as
            RoundICM.kicks.
        images: number of training examples to calibrate with.
        batch_size: examples in a batch.
        damping: added to the diagonal of the second moments, as a fraction of its mean.
        seed: seed of the sampled output pixels, and of random numbers that the network draws.
        group_size: neighbouring weights of a row that share a scale; None for all of them. Rows of transposed
            convolutions always have one scale.
        zero_point: add a fitted number to the scaled levels of a row or group.
        bound: also compute a lower bound on each layer's energy, which takes longer than rounding.
        scale_type: the type in which a file keeps scales and zero points, 'float32', 'float16' or 'bfloat16': they only
            take its values, and labels are chosen for those.
    """

    def __init__(
        self,
        solver: SolverSetting = "icm",
        images: Several = 2000,
        batch_size: Several = 250,
        damping: Fraction = 0.01,
        seed: Whole = 0,
        group_size: Count | None = None,
        zero_point: bool = False,
        bound: bool = False,
        scale_type: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> None:
        self.solver = SOLVERS[solver]() if isinstance(solver, str) else solver
        self.images, self.batch_size, self.damping, self.seed = images, batch_size, damping, seed
        self.group_size, self.zero_point, self.bound = group_size, zero_point, bound
        self.scale_type = scale_type

    def batches(self, dataset: Dataset) -> Iterator[Tensor]:
        """Yield the first inputs of the training split, without augmentation."""
        left = self.images
        for inputs, _ in dataset.ordered("train", self.batch_size):
            if left > 0:
                yield inputs[:left]
            left -= len(inputs)
            if left <= 0:
                return

    @torch.no_grad()
    def run(
        self,
        model: nn.Module,
        levels: Mapping[str, LevelSet],
        batches: Iterable[Any],
        report: Callable[[LayerReport], None],
        warn: Callable[[str], None],
        forward: Forward = nn.Module.__call__,
        folder: str | os.PathLike[str] | None = None,
        rounded_batches: Iterable[Any] = (),
        unreached: bool = False,
    ) -> RoundedNetwork:
        """Round weights of the model in place, in the order of their use; if that fails, the model is unchanged.

        Args:
            model: the trained network.
            levels: levels of each weight to round, by its name.
            batches: calibration batches; all of them are held in memory.
            report: called when a layer is done.
            warn: called with a sentence where the batches are too few.
            forward: computes a batch with the model.
            folder: stores the results, so that the same call goes on after an interruption.
            rounded_batches: what the rounded model gets in their place, if its inputs come from rounded layers.
            unreached: also round weights that no batch reaches, to nearest levels, instead of refusing them.
        """
        levels = chains_where_they_fit(model, levels, warn)
        if any(isinstance(of, Trellis) for of in levels.values()) and (
            self.group_size or self.zero_point or self.bound
        ):
            raise BadInput("a trellis has scales of rows and inputs: leave out group_size, zero_point and bound")
        result, began = RoundedNetwork(model, levels), time.perf_counter()
        device = next(model.parameters()).device
        exact, present = (
            [tree_map_only(Tensor, lambda t: t.to(device), batch) for batch in given]
            for given in (batches, rounded_batches)
        )
        replay = Replay(model, forward, exact, self.seed, present)
        if not replay.batches:
            raise BadInput("there is no batch to calibrate with: give at least one")

        def solve(statistics: LayerStatistics) -> tuple[AnyRounded, LayerReport]:
            chosen = levels[statistics.name]
            if isinstance(chosen, Trellis):
                return self._solve_chains(statistics, chosen, warn)
            return self._solve(statistics, chosen, warn)

        def keep(layer: LayerReport) -> None:
            result.layers.append(layer)
            report(layer)

        parts = [vars(self), vars(self.solver), {name: repr(of) for name, of in levels.items()}]
        settings = json.dumps(parts, default=lambda value: type(value).__name__)
        journal = Journal(folder, fingerprint(model, [*exact, *present], settings)) if folder else Journal()
        weights, generator = dict(model.named_parameters()), torch.Generator().manual_seed(self.seed)
        walk = Walk(
            replay, {name: weights[name] for name in levels}, levels, solve, journal, keep, generator, unreached
        )
        with torch.random.fork_rng(), _one_by_one(model):  # networks may draw numbers
            torch.manual_seed(self.seed)
            result.answers = walk.run()
        result.seconds = time.perf_counter() - began
        return result

    def curvature(self, sums: RowStatistics, name: str, warn: Callable[[str], None]) -> Tensor:
        """Return the damped second moments of some rows' inputs; damped more if the inputs are few."""
        damping, n = self.damping, len(sums.a)
        if sums.inputs < n and damping < RANK_DAMPING:
            damping = RANK_DAMPING
            few = f"{sums.inputs:,} inputs are few for {n:,} weights a row; damped by {damping:.0%}"
            warn(f"{name}: {few if sums.inputs else 'no input reaches it, its weights take nearest levels'}, give more")
        return sums.curvature(damping)

    def _solve_chains(
        self, statistics: LayerStatistics, trellis: Trellis, warn: Callable[[str], None]
    ) -> tuple[AnyRounded, LayerReport]:
        """Find the paths of a weight through a trellis, and report how good they are."""
        name, w = statistics.name, statistics.w
        solver, (rows, *others) = RoundChains.by(self.solver, trellis), statistics.parts()
        if others:
            raise BadInput(f"the rows of {name} have different inputs, which no chain goes through: give it other bits")
        try:
            a = self.curvature(rows[1], name, warn)
            targets, began = rows[1].targets(w, a).T.contiguous(), time.perf_counter()
            found, energy = solver.round(targets, a, statistics.weight.shape)
            seconds = time.perf_counter() - began
            levels = w.new_tensor(uniform(trellis.bits).values)
            greedy, problem = RoundGPTQ().solve(LayerProblem.from_weights(targets, a, levels))
        except torch.linalg.LinAlgError:
            raise BadInput(f"the second moments of {name}'s inputs are singular: raise Rounding.damping") from None
        reference = problem.energy(problem.values(greedy)).sum().item()
        relative = energy / max(reference, 1e-300)
        return found, LayerReport(name, len(w), w.shape[1], energy, relative, None, seconds)

    def _solve(
        self, statistics: LayerStatistics, levels: LevelSet, warn: Callable[[str], None]
    ) -> tuple[RoundedWeight, LayerReport]:
        """Find the labels of a weight, and report how good they are."""
        name, weights, form = statistics.name, statistics.w, statistics.form
        # The weights of a transposed convolution that share an output are no neighbours: they have one scale.
        scattered = form.transposed and not form.linear
        size = None if scattered or (self.group_size or 0) >= weights.shape[1] else self.group_size
        labels = torch.empty_like(weights, dtype=torch.int64)
        scales = torch.empty_like(weights if size else weights[:, :1])
        zeros, q = torch.empty_like(scales) if self.zero_point else None, weights.new_tensor(levels.values)
        energy = reference = changed = seconds = least = 0.0
        try:
            for rows, a, targets in self._pieces(statistics, warn):
                problem = LayerProblem.from_weights(
                    targets, a, q, size, self.zero_point, getattr(torch, self.scale_type)
                )
                began = time.perf_counter()
                chosen, fitted = self.solver.solve(problem)
                seconds += time.perf_counter() - began
                greedy, by_greedy = RoundGPTQ(scales=(1.0,), by_activation=False).solve(problem)  # as published
                energy += fitted.energy(fitted.values(chosen)).sum().item()
                reference += by_greedy.energy(by_greedy.values(greedy)).sum().item()
                changed += (chosen != greedy).sum().item()
                if self.bound:
                    least += lower_bound(fitted).sum().item()
                labels[rows], scales[rows] = chosen.T, fitted.scale.T[:, : scales.shape[1]]
                if zeros is not None and fitted.zero is not None:
                    zeros[rows] = fitted.zero.T[:, : scales.shape[1]]
        except torch.linalg.LinAlgError:
            raise BadInput(f"the second moments of {name}'s inputs are singular: raise Rounding.damping") from None
        bound = least if self.bound else None
        relative, share = energy / max(reference, 1e-300), changed / weights.numel()
        shape = statistics.weight.shape
        chosen = form.tensor(labels, shape).to(torch.uint8 if len(q) <= 256 else torch.int64)
        zero, run = zeros if zeros is None else form.spread(zeros, shape), size
        if scattered:
            run = math.prod(shape[2:])
        found = RoundedWeight(chosen, form.spread(scales, shape), zero, run, **asdict(form.of_linear(shape)))
        return found, LayerReport(name, len(weights), weights.shape[1], energy, relative, share, seconds, bound)

    def _pieces(
        self, statistics: LayerStatistics, warn: Callable[[str], None]
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows that are rounded at once, their curvature A and their targets (n, rows)."""
        weights = statistics.w
        step = max(1, MOST_AT_ONCE // weights.shape[1])
        for whole, sums in statistics.parts():
            a = self.curvature(sums, statistics.name, warn)
            targets = sums.targets(weights[whole], a).T
            for start in range(0, targets.shape[1], step):
                piece = targets[:, start : start + step].contiguous()
                first = whole.start + start
                yield slice(first, first + piece.shape[1]), a, piece
