"""Round a network by one call."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet, uniform
from mrfquant.labelling.selection import TIED, coverage, left_out, warn_of_unknown_layers
from mrfquant.rounding.answers import LayerReport, RoundedNetwork
from mrfquant.rounding.network import Rounding
from mrfquant.rounding.solvers import LayerSolver

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ROUNDABLE = (nn.Linear, *CONVOLUTIONS, nn.MultiheadAttention)
Levels = int | Sequence[float] | LevelSet  # bits, for even levels, or the levels themselves


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
    damping: float = 0.01,
    seed: int = 0,
    progress: bool = True,
    folder: str | os.PathLike[str] | None = None,
    bound: bool = False,
) -> RoundedNetwork:
    """Round the weights of a trained network to few levels, in place and without training.

    Linear layers, convolutions and attention are rounded in the order of their use; a layer that is used several times
    is rounded for all its uses. Every row of a weight, or every group of a row, has a fitted scale. If the call fails
    or is interrupted, the network is unchanged.

    Args:
        model: the network, on its device.
        batches: calibration data: some hundreds of examples in all, in any form that `forward` takes.
        bits: 2^bits even levels, or a list of levels, as [-1, 0, 1], or a trellis, as mq.Trellis(2, memory=12).
        solver: 'nearest', 'gptq', 'icm', 'mean_field', 'tree' or a `LayerSolver`.
        exclude: patterns of names of weights or layers that stay in float, as ["conv1", "head.*"].
        overrides: other bits or levels by such patterns, as {"layer3.*": 3}; the first that fits counts.
        group_size: neighbouring weights of a row that share a scale, as 64; by default all of them do. Rows of
            transposed convolutions always have one scale.
        zero_point: add a fitted number to the levels of a row or group.
        forward: computes a batch, as lambda model, batch: model(batch["image"]). By default a dict is passed as
            keywords, and of a tuple or a list the first entry.
        damping: added to the diagonal of the inputs' second moments, as a fraction of its mean.
        seed: seed of all random choices; the global random state is not used.
        progress: print a line for every layer.
        folder: stores the result of every layer, so that the same call goes on where it was interrupted.
        bound: also compute a lower bound on each layer's energy, which takes longer than rounding.

    Returns:
        The network with a report, ready to be saved.
    """
    notes: list[str] = []
    levels = choose_levels(model, bits, exclude, overrides, notes.append)
    done = itertools.count(1)

    def report(layer: LayerReport) -> None:
        if progress:
            count, relative = f"{next(done)} of {len(levels)}", f"energy {layer.relative:.3f} of gptq's"
            print(f"{count}: {layer.name}, {relative}, {layer.seconds:.1f} s", file=sys.stderr, flush=True)

    rounding = Rounding(solver, damping=damping, seed=seed, group_size=group_size, zero_point=zero_point, bound=bound)
    given = [batches] if isinstance(batches, (Tensor, Mapping)) else batches
    result = rounding.run(model, levels, given, report, notes.append, forward or plain_call, folder)
    result.notes, result.coverage = notes, coverage(model, result.levels, ROUNDABLE)
    return result


def plain_call(model: nn.Module, batch: Any) -> Any:
    """Call the network with a batch: with a dict as keywords, with the first entry of a tuple or list."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def choose_levels(
    model: nn.Module,
    bits: Levels,
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Levels] | None = None,
    tell: Callable[[str], None] = print,
    among: Callable[[str], bool] = lambda name: True,
) -> dict[str, LevelSet]:
    """Return the levels of each weight to round `among` those of these names; `tell` which are skipped or shared."""
    overrides = overrides or {}
    if isinstance(exclude, str):
        raise BadInput(f"exclude = {exclude!r}, expected a list of patterns, as [{exclude!r}]")
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    reasons = left_out(model, ROUNDABLE)
    chosen = {name for name, why in reasons.items() if among(name) and (not why or why.startswith(TIED))}
    sets = {}
    unused = {*exclude, *overrides}
    for first, *others in names.values():
        if first not in chosen:
            continue
        known = [n for name in (first, *others) for n in (name, name.rpartition(".")[0])]  # of the weight, of its layer
        fitting = [p for p in (*exclude, *overrides) if any(fnmatchcase(n, p) for n in known)]
        unused -= set(fitting)
        if set(fitting) & set(exclude):
            continue
        if reasons[first]:
            tell(f"{first} stays in float: it is {reasons[first]}")
            continue
        if others:
            tell(f"{first} is also {', '.join(others)}: rounded once, for all its uses")
        sets[first] = _level_set(overrides[fitting[0]] if fitting else bits)
    if unused:
        listed = ", ".join(name for of in names.values() for name in of if of[0] in chosen)
        raise BadInput(f"the pattern {min(unused)!r} matches no weight that could be rounded; there are {listed}")
    warn_of_unknown_layers(model, sets, ROUNDABLE)
    if not sets:
        raise BadInput("there is no weight to round: exclude less, or give a network with linear layers")
    return sets


def _level_set(levels: Levels) -> LevelSet:
    if isinstance(levels, LevelSet):
        return levels
    return uniform(levels) if isinstance(levels, int) else LevelSet(levels)
