"""Rounding a network by one call, and what comes of it."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet, uniform, weights_of
from mrfquant.packing import PackedNetwork, pack_weights
from mrfquant.rounding.answers import Found, LayerReport
from mrfquant.rounding.network import Rounding
from mrfquant.rounding.replay import Forward
from mrfquant.rounding.solvers import LayerSolver
from mrfquant.text import aligned

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ROUNDABLE = (nn.Linear, *CONVOLUTIONS, nn.MultiheadAttention)
Levels = int | Sequence[float] | LevelSet  # bits, for even levels, or the levels themselves


@dataclass
class RoundedNetwork:
    """A network whose weights were rounded.

    Attributes:
        model: the network itself, with rounded weights.
        layers: how each layer was rounded, in the order of their use.
        notes: what there is to know besides: weights that were left, or that had few inputs.
        levels: of every rounded weight, by name.
        answers: labels, scales and zero points of every rounded weight.
        seconds: that it took.
    """

    model: nn.Module
    levels: Mapping[str, LevelSet]
    layers: list[LayerReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    answers: Mapping[str, Found] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def labels(self) -> dict[str, Tensor]:
        """Of every rounded weight, in its shape."""
        return {name: answer.labels for name, answer in self.answers.items()}

    @property
    def scales(self) -> dict[str, Tensor]:
        """That multiply the levels of a weight, in a shape that broadcasts with it."""
        return {name: answer.scale for name, answer in self.answers.items()}

    def __str__(self) -> str:
        rows = [["layer", "rows x weights", "bits", "energy / gptq", "labels changed", "seconds"]]
        for layer in self.layers:
            bits, shape = self.levels[layer.name].bits, f"{layer.rows:,} x {layer.n:,}"
            figures = [f"{layer.relative:.3f}", f"{layer.changed:.1%}", f"{layer.seconds:.1f}"]
            rows.append([layer.name, shape, f"{bits}", *figures])
        if any(layer.bound for layer in self.layers):
            rows[0].append("above the optimum")
            for row, layer in zip(rows[1:], self.layers, strict=True):
                row.append(f"at most {layer.energy / layer.bound - 1:.0%}" if layer.bound else "")
        return "\n".join([aligned(rows), *self.notes, f"{self.seconds:.1f} s"])

    def pack(self) -> PackedNetwork:
        """The network with its labels as bits."""
        return pack_weights(
            self.model,
            {name: levels.values for name, levels in self.levels.items()},
            {name: answer.scale.expand(answer.labels.shape) for name, answer in self.answers.items()},
            {name: answer.run for name, answer in self.answers.items() if answer.run},
            zeros={
                name: answer.zero.expand(answer.labels.shape)
                for name, answer in self.answers.items()
                if answer.zero is not None
            },
        )

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the packed network to a safetensors file, for `mq.load(path, model)`; returns its size in bytes."""
        return self.pack().write(path)


def round_network(
    model: nn.Module,
    batches: Iterable[Any],
    bits: Levels = 2,
    solver: str | LayerSolver = "icm",
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Levels] | None = None,
    group_size: int | None = None,
    zero_point: bool = False,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    targets: Literal["float", "own"] = "float",
    damping: float = 0.01,
    seed: int = 0,
    progress: bool = True,
    folder: str | os.PathLike[str] | None = None,
    bound: bool = False,
) -> RoundedNetwork:
    """Round the weights of a trained network to few levels, in place and without training.

    Those of linear layers, convolutions and attention are rounded, layer by layer in the order of their use; a layer
    that is used several times is rounded for all its uses. Every row of a weight, or every group of its weights, has a
    scale, which is fitted. If it
    fails or is interrupted, the network is as it was.

    Args:
        model: the network, on its device.
        batches: to calibrate with: some hundreds of examples in all, in any form that `forward` takes.
        bits: 2^bits even levels, or a list of levels, as [-1, 0, 1].
        solver: 'nearest', 'gptq', 'icm', 'mean_field', 'tree' or a solver of your own.
        exclude: patterns of names of weights or layers that stay in float, as ["conv1", "head.*"].
        overrides: other bits or levels by such patterns, as {"layer3.*": 3}; the first that fits counts.
        group_size: neighbouring weights of a row that share a scale, as 64; by default all of them do. Rows of
            transposed convolutions have one scale in any case.
        zero_point: add a fitted number to the levels of a row or group, which then need not lie around zero.
        forward: computes a batch, as lambda model, batch: model(batch["image"]). By default a dict is given as
            keywords, and of a tuple or a list the first entry is given.
        targets: what a layer's outputs should be: 'float', those of the float network, less the error of what they are
            added to; 'own', those that its trained weights give on the inputs that it has in the rounded network.
        damping: added to the diagonal of the inputs' second moments, as a share of its mean.
        seed: of what is drawn; the global random state has no part in it.
        progress: print a line for every layer.
        folder: keeps the answer of every layer, so that the same call goes on where it was interrupted.
        bound: find how far each layer's energy may be from the least one, too; it takes longer than rounding.

    Returns:
        The network with a report, ready to be saved.
    """
    rounding = Rounding(
        solver,
        targets=targets,
        damping=damping,
        seed=seed,
        group_size=group_size,
        zero_point=zero_point,
        bound=bound,
    )
    notes: list[str] = []
    levels = _levels(model, bits, exclude, dict(overrides or {}), notes.append)
    done = itertools.count(1)

    def report(layer: LayerReport) -> None:
        if progress:
            count, relative = f"{next(done)} of {len(levels)}", f"energy {layer.relative:.3f} of gptq's"
            print(f"{count}: {layer.name}, {relative}, {layer.seconds:.1f} s", file=sys.stderr, flush=True)

    given = [batches] if isinstance(batches, (Tensor, Mapping)) else batches
    result = rounded(rounding, model, levels, given, report, notes.append, forward or plain_call, folder)
    result.notes = notes
    return result


def rounded(
    rounding: Rounding,
    model: nn.Module,
    levels: Mapping[str, LevelSet],
    batches: Iterable[Any],
    report: Callable[[LayerReport], None],
    warn: Callable[[str], None],
    forward: Forward = nn.Module.__call__,
    folder: str | os.PathLike[str] | None = None,
) -> RoundedNetwork:
    """What `round_network` and the command do, once settings and levels are known; see `Rounding.run`."""
    result, began = RoundedNetwork(model, levels), time.perf_counter()
    device = next(model.parameters()).device

    def keep(layer: LayerReport) -> None:
        result.layers.append(layer)
        report(layer)

    present = [tree_map_only(Tensor, lambda t: t.to(device), batch) for batch in batches]
    result.answers = rounding.run(model, levels, present, keep, warn, forward, folder)
    result.seconds = time.perf_counter() - began
    return result


def plain_call(model: nn.Module, batch: Any) -> Any:
    """A batch as the most common networks take it."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _levels(
    model: nn.Module,
    bits: Levels,
    exclude: Sequence[str],
    overrides: dict[str, Levels],
    tell: Callable[[str], None],
) -> dict[str, LevelSet]:
    """The levels of each weight to round; says which are left or shared."""
    if isinstance(exclude, str):
        raise BadInput(f"exclude = {exclude!r}, expected a list of patterns, as [{exclude!r}]")
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    chosen = weights_of(*ROUNDABLE)(model)
    sets = {}
    unused = {*exclude, *overrides}
    for first, *others in names.values():
        if first not in chosen:
            continue
        fitting = [pattern for pattern in (*exclude, *overrides) if _fits(pattern, [first, *others])]
        unused -= set(fitting)
        if set(fitting) & set(exclude):
            continue
        owners = [model.get_submodule(name.rpartition(".")[0]) for name in (first, *others)]
        if strange := [type(owner).__name__ for owner in owners if not isinstance(owner, ROUNDABLE)]:
            tell(f"{first} stays in float: it is also the weight of an {strange[0]}")
            continue
        if others:
            tell(f"{first} is also {', '.join(others)}: rounded once, for all its uses")
        sets[first] = _level_set(overrides[fitting[0]] if fitting else bits)
    if unused:
        known = ", ".join(name for of in names.values() for name in of if of[0] in chosen)
        raise BadInput(f"the pattern {min(unused)!r} fits no weight that could be rounded; there are {known}")
    if not sets:
        raise BadInput("there is no weight to round: exclude less, or give a network with linear layers")
    return sets


def _fits(pattern: str, names: Sequence[str]) -> bool:
    """Whether a pattern fits a weight, by one of its names or by the name of its layer."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern) for name in names)


def _level_set(levels: Levels) -> LevelSet:
    if isinstance(levels, LevelSet):
        return levels
    return uniform(levels) if isinstance(levels, int) else LevelSet(levels)
