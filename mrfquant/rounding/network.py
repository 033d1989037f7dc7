"""Round a trained network layer by layer: each layer gets its inputs from the rounded layers before it, and should give
the outputs that it has in the float network."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrfquant.config.settings import Check, Count, Fraction, Whole, configurable
from mrfquant.data import Dataset
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling import LevelSet
from mrfquant.rounding.answers import Journal, LayerReport, RoundedNetwork, RoundedWeight, fingerprint
from mrfquant.rounding.bound import lower_bound
from mrfquant.rounding.by_inference import RoundByInference
from mrfquant.rounding.layer_statistics import LayerStatistics, RowStatistics
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.replay import Forward, Replay
from mrfquant.rounding.solvers import LayerSolver, RoundGPTQ, RoundICM, RoundMeanField, RoundNearest, RoundTree
from mrfquant.rounding.walk import BatchNorm, Walk

SOLVERS: dict[str, type[LayerSolver]] = {
    solver.name: solver for solver in (RoundNearest, RoundGPTQ, RoundICM, RoundMeanField, RoundTree, RoundByInference)
}
RANK_DAMPING = 0.1  # where there are fewer inputs than weights of a row
Several = Annotated[int, Check(lambda v: v > 1, "a whole number above 1")]
KNOWN_SOLVER = Check(
    lambda v: isinstance(v, LayerSolver) or v in SOLVERS,
    f"one of {', '.join(SOLVERS)}, or a LayerSolver as @RoundICM()",
)
SolverSetting = Annotated[str | LayerSolver, KNOWN_SOLVER]


@configurable
class Rounding:
    """Settings of layer-by-layer rounding.

    Args:
        solver: assigns the labels of a layer: its name, or a `LayerSolver` as @RoundICM(), whose settings are bound as
            RoundICM.kicks.
        start: the solver from whose answer it starts; None for the solver's own start.
        images: number of training examples to calibrate with.
        batch_size: examples in a batch.
        damping: added to the diagonal of the second moments, as a fraction of its mean.
        recalibrate: change the statistics of batch norm as rounding changes its inputs.
        targets: the outputs that a layer should give: 'float', those of the float network, corrected for the error of
            a residual sum; 'own', those of its trained weights on its inputs in the rounded network.
        seed: seed of the sampled output pixels, and of random numbers that the network draws.
        group_size: neighbouring weights of a row that share a scale; None for all of them. Rows of transposed
            convolutions always have one scale.
        zero_point: add a fitted number to the scaled levels of a row or group.
        bound: also compute a lower bound on each layer's energy, which takes longer than rounding.
    """

    def __init__(
        self,
        solver: SolverSetting = "icm",
        start: SolverSetting | None = None,
        images: Several = 2000,
        batch_size: Several = 250,
        damping: Fraction = 0.01,
        recalibrate: bool = True,
        targets: Literal["float", "own"] = "float",
        seed: Whole = 0,
        group_size: Count | None = None,
        zero_point: bool = False,
        bound: bool = False,
    ) -> None:
        if start and solver in ("nearest", "gptq"):
            raise BadSetting("Rounding.start", start, f"None: {solver} takes every weight anew, wherever it starts")
        self.solver = SOLVERS[solver]() if isinstance(solver, str) else solver
        self.start = SOLVERS[start]() if isinstance(start, str) else start
        self.images, self.batch_size, self.damping, self.recalibrate = images, batch_size, damping, recalibrate
        self.targets, self.seed, self.group_size, self.zero_point = targets, seed, group_size, zero_point
        self.bound = bound

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
        """
        result, began = RoundedNetwork(model, levels), time.perf_counter()
        device = next(model.parameters()).device
        present = [tree_map_only(Tensor, lambda t: t.to(device), batch) for batch in batches]
        replay = Replay(model, forward, present, self.seed)

        def solve(statistics: LayerStatistics) -> tuple[RoundedWeight, LayerReport]:
            return self._solve(statistics, levels[statistics.name], warn)

        def keep(layer: LayerReport) -> None:
            result.layers.append(layer)
            report(layer)

        parts = [vars(part) for part in (self, self.solver, self.start) if part is not None]
        parts.append({name: of.values for name, of in levels.items()})
        settings = json.dumps(parts, default=lambda value: type(value).__name__)
        journal = Journal(folder, fingerprint(model, replay.batches, settings)) if folder else Journal()
        result.answers = self.round_layers(replay, model, levels, solve, keep, journal)
        result.seconds = time.perf_counter() - began
        return result

    def round_layers(
        self,
        replay: Replay,
        model: nn.Module,
        levels: Mapping[str, LevelSet],
        solve: Callable[[LayerStatistics], tuple[RoundedWeight, LayerReport]],
        report: Callable[[LayerReport], None],
        journal: Journal,
        others: Mapping[str, Tensor] | None = None,
    ) -> dict[str, RoundedWeight]:
        """Round weights with labels from `solve`; `others` are values of parameters that are rounded already."""
        if not replay.batches:
            raise BadInput("there is no batch to calibrate with: give at least one")
        names = dict(model.named_parameters())
        norms = {name: m for name, m in model.named_modules() if isinstance(m, BatchNorm) and self.recalibrate}
        weights, generator = {name: names[name] for name in levels}, torch.Generator().manual_seed(self.seed)
        norms, float_targets = {n: m for n, m in norms.items() if m.running_mean is not None}, self.targets == "float"
        walk = Walk(replay, weights, levels, solve, journal, report, float_targets, norms, generator)
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.random.fork_rng():  # networks may draw numbers
                torch.manual_seed(self.seed)
                for name, values in (others or {}).items():
                    walk.keep(names[name])
                    names[name].copy_(values)
                return walk.run()
        except BaseException:
            walk.restore()
            raise
        finally:
            for module, mode in modes.items():
                module.training = mode

    def curvature(self, sums: RowStatistics, name: str, warn: Callable[[str], None]) -> Tensor:
        """Return the damped second moments of some rows' inputs; damped more if the inputs are few."""
        damping, n = self.damping, len(sums.a)
        if sums.inputs < n and damping < RANK_DAMPING:
            damping = RANK_DAMPING
            few = f"{sums.inputs:,} inputs are few for {n:,} weights a row"
            warn(f"{name}: {few}; damped by {damping:.0%}, give more")
        return sums.curvature(damping)

    def _solve(
        self, statistics: LayerStatistics, levels: LevelSet, warn: Callable[[str], None]
    ) -> tuple[RoundedWeight, LayerReport]:
        """Find the labels of a weight, and report how good they are."""
        name, weights, form = statistics.name, statistics.w, statistics.form
        # The weights of a transposed convolution that share an output are no neighbours: they have one scale.
        size = None if form.transposed or (self.group_size or 0) >= weights.shape[1] else self.group_size
        labels = torch.empty_like(weights, dtype=torch.int64)
        scales = torch.empty_like(weights if size else weights[:, :1])
        zeros, q = torch.empty_like(scales) if self.zero_point else None, weights.new_tensor(levels.values)
        energy = reference = changed = seconds = least = 0.0
        for rows, sums in statistics.parts():
            try:
                a = self.curvature(sums, name, warn)
                targets = sums.targets(weights[rows], a).T.contiguous()
                problem = LayerProblem.from_weights(targets, a, q, size, self.zero_point)
                began = time.perf_counter()
                start = None if self.start is None else self.start.solve(problem)
                chosen, fitted = self.solver.solve(problem, start)
                seconds += time.perf_counter() - began
                greedy, by_greedy = RoundGPTQ(scales=(1.0,), by_activation=False).solve(problem)  # as published
            except torch.linalg.LinAlgError:
                raise BadInput(f"the second moments of {name}'s inputs are singular: raise Rounding.damping") from None
            energy += fitted.energy(fitted.values(chosen)).sum().item()
            reference += by_greedy.energy(by_greedy.values(greedy)).sum().item()
            changed += (chosen != greedy).sum().item()
            if self.bound:
                least += lower_bound(fitted).sum().item()
            labels[rows], scales[rows] = chosen.T, fitted.scale.T[:, : scales.shape[1]]
            if zeros is not None and fitted.zero is not None:
                zeros[rows] = fitted.zero.T[:, : scales.shape[1]]
        bound = least if self.bound else None
        relative, share = energy / max(reference, 1e-300), changed / weights.numel()
        shape = statistics.weight.shape
        chosen = form.tensor(labels, shape).to(torch.uint8 if len(q) <= 256 else torch.int64)
        zero, run = zeros if zeros is None else form.spread(zeros, shape), size
        if form.transposed:
            run = math.prod(shape[2:])
        found = RoundedWeight(chosen, form.spread(scales, shape), zero, run)
        return found, LayerReport(name, len(weights), weights.shape[1], energy, relative, share, seconds, bound)
