"""Rounding a trained network, layer by layer; each layer meets its inputs as the rounded layers before it make them,
and is to give the outputs that it has in the float network."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from mrfquant.config.settings import Check, Count, Fraction, Whole, configurable
from mrfquant.data import Dataset
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling import LevelSet
from mrfquant.rounding.answers import Found, Journal, LayerReport, fingerprint
from mrfquant.rounding.bound import lower_bound
from mrfquant.rounding.moments import Moments, Rows
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.replay import Forward, Replay
from mrfquant.rounding.solver_names import SOLVERS
from mrfquant.rounding.solvers import LayerSolver, RoundGPTQ
from mrfquant.rounding.walk import BatchNorm, Walk

RANK_DAMPING = 0.1  # where there are fewer inputs than weights of a row
Several = Annotated[int, Check(lambda v: v > 1, "a whole number above 1")]
SolverSetting = Annotated[
    str | LayerSolver,
    Check(
        lambda v: isinstance(v, LayerSolver) or v in SOLVERS,
        f"one of {', '.join(SOLVERS)}, or a LayerSolver as @RoundICM()",
    ),
]


@configurable
class Rounding:
    """The settings, and the walk over the layers.

    Args:
        solver: what assigns the labels of a layer, by its name or as @RoundICM(), or a solver of your own likewise;
            settings of its own are those of RoundICM, RoundMeanField and so on.
        start: the solver from whose answer it starts; None is the solver's own way to start.
        images: of the training set, to calibrate with.
        batch_size: of them at a time.
        damping: added to the diagonal of the second moments, as a share of its mean.
        recalibrate: change the statistics of batch norm as rounding changes its inputs.
        targets: what a layer's outputs should be: 'float', those of the float network, less the error of what they are
            added to; 'own', those that its trained weights give on the inputs that it has in the rounded network.
        seed: of the output pixels that stand for all of a large image, and of what the network itself draws.
        group_size: neighbouring weights of a row that share a scale; None for all of them. Rows of transposed
            convolutions have one scale in any case.
        zero_point: add a fitted number to the scaled levels of a row or group.
        bound: find what each layer's energy cannot fall below, too; it takes longer than rounding.
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
        """The first inputs of the training split, without augmentation."""
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
    ) -> dict[str, Found]:
        """Round weights of the model in place, in the order in which they are used.

        If it fails or is interrupted, the model is as it was.

        Args:
            model: holds the trained weights.
            levels: of each weight to round, by its name.
            batches: to calibrate with; all of them are held in memory.
            report: called when a layer is done.
            warn: called with a sentence where the batches are too few.
            forward: computes a batch with the model.
            folder: keeps the answers, so that the same call goes on after an interruption.

        Returns:
            For each weight its labels, its scales and its zero points.
        """
        replay = Replay(model, forward, list(batches), self.seed)

        def solve(moments: Moments) -> tuple[Found, LayerReport]:
            return self._solve(moments, levels[moments.name], warn)

        parts = [vars(part) for part in (self, self.solver, self.start) if part is not None]
        parts.append({name: of.values for name, of in levels.items()})
        settings = json.dumps(parts, default=lambda value: type(value).__name__)
        journal = Journal(folder, fingerprint(model, replay.batches, settings)) if folder else Journal()
        return self.walked(replay, model, levels, solve, report, journal)

    def walked(
        self,
        replay: Replay,
        model: nn.Module,
        levels: Mapping[str, LevelSet],
        solve: Callable[[Moments], tuple[Found, LayerReport]],
        report: Callable[[LayerReport], None],
        journal: Journal,
        others: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Found]:
        """The walk of `run`, with whatever finds the labels of a weight.

        Args:
            replay: runs the model.
            solve: finds the labels.
            journal: keeps them.
            others: the values of parameters that are rounded already, by name.
        """
        if not replay.batches:
            raise BadInput("there is no batch to calibrate with: give at least one")
        names = dict(model.named_parameters())
        norms = {name: m for name, m in model.named_modules() if isinstance(m, BatchNorm)}
        walk = Walk(
            replay,
            {name: names[name] for name in levels},
            levels,
            solve,
            journal,
            report,
            self.targets == "float",
            {name: m for name, m in norms.items() if self.recalibrate and m.running_mean is not None},
            torch.Generator().manual_seed(self.seed),
        )
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.random.fork_rng():  # networks may draw numbers
                torch.manual_seed(self.seed)
                for name, values in (others or {}).items():
                    walk.trained.keep(names[name])
                    names[name].copy_(values)
                return walk.run()
        except BaseException:
            walk.trained.restore()
            raise
        finally:
            for module, mode in modes.items():
                module.training = mode

    def curvature(self, sums: Rows, name: str, warn: Callable[[str], None]) -> Tensor:
        """Of the inputs that some rows of a weight see; damped the more if they are few."""
        damping, n = self.damping, len(sums.a)
        if sums.inputs < n and damping < RANK_DAMPING:
            damping = RANK_DAMPING
            few = f"{sums.inputs:,} inputs are few for {n:,} weights a row"
            warn(f"{name}: {few}; damped by {damping:.0%}, give more")
        return sums.curvature(damping)

    def _solve(self, moments: Moments, levels: LevelSet, warn: Callable[[str], None]) -> tuple[Found, LayerReport]:
        """The labels of a weight, and how well they do."""
        name, weights = moments.name, moments.w
        # The weights of a transposed convolution that share an output are no neighbours: they have one scale.
        size = None if moments.form.transposed or (self.group_size or 0) >= weights.shape[1] else self.group_size
        labels = torch.empty_like(weights, dtype=torch.int64)
        scales = torch.empty_like(weights if size else weights[:, :1])
        zeros, q = torch.empty_like(scales) if self.zero_point else None, weights.new_tensor(levels.values)
        energy = reference = changed = seconds = least = 0.0
        for rows, sums in moments.parts():
            try:
                a = self.curvature(sums, name, warn)
                targets = sums.targets(weights[rows], a).T.contiguous()
                problem = LayerProblem.of(targets, a, q, size, self.zero_point)
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
        form, shape = moments.form, moments.weight.shape
        found = Found(
            form.tensor(labels, shape).to(torch.uint8 if len(q) <= 256 else torch.int64),
            form.spread(scales, shape),
            None if zeros is None else form.spread(zeros, shape),
            math.prod(shape[2:]) if form.transposed else size,
        )
        return found, LayerReport(name, len(weights), weights.shape[1], energy, relative, share, seconds, bound)
