"""Which parameters of a network are labelled, with which levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mrfquant.compute import present_team
from mrfquant.config.settings import Count, configurable
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling.block import Block
from mrfquant.labelling.flat import FlatParameters
from mrfquant.labelling.levels import LevelSet
from mrfquant.labelling.matrices import other_matrices, save_in_order
from mrfquant.labelling.scales import Scales
from mrfquant.labelling.selection import PRESETS, PRODUCTS, coverage, warn_of_unknown_layers
from mrfquant.labelling.trellis import Trellis, levels_for_the_short
from mrfquant.text import aligned

Levels = Sequence[float] | LevelSet
LEVEL_TOLERANCE = 0.05  # in units of the scale: how far a weight on a level may be off it, in any precision


@configurable(supplied=["model"])
class Labelling:
    """The trainable parameters of a network: which take which levels, with which scales, and which are free.

    All labelled parameters lie in one vector, block after block, and all free ones in another; the network's own
    parameters become views of them. Parameters that appear twice count once, frozen ones stay outside.

    Args:
        model: the network, already on its device.
        levels: the levels of every labelled parameter, or a mapping from name patterns (as in a shell: '*' and '?') to
            levels, of which the first that matches counts; None labels nothing.
        which: what is labelled: 'everything', as in the paper; 'weights', those of linear, convolutional, attention and
            recurrent layers and of experts; 'inner weights', these without the first and the last layer's; or a
            function from the network to the names, such as `weights_of(nn.Linear)`. Patterns choose among these.
        exclude: patterns of names that stay free in any case.
        scale: 'none' uses the levels as they are; a number multiplies them; 'layer', 'channel' and 'group' multiply the
            levels of each tensor, of each slice along its first dimension (a layer's output channel), or of each run
            of `group_size` weights of such a slice, by the mean magnitude of the initial weights there over that of
            the levels, as Binary Weight Networks do. Where all of these are 0, a random start's magnitude is taken.
        group_size: weights that share a scale where it is 'group'; the last run of a slice may be shorter.

    Attributes:
        model: the network.
        labelled: the labelled parameters in one vector.
        free: the other parameters in one vector.
        blocks: views of `labelled`, one per level set and optimizer group.
        local_blocks: what this process keeps variables for: the blocks themselves, unless processes share them.
        sharded: whether processes share the variables.
        scales: of runs of weights, or None for 1.
    """

    def __init__(
        self,
        model: nn.Module,
        levels: Levels | Mapping[str, Levels] | None = None,
        exclude: Sequence[str] = (),
        scale: Literal["none", "layer", "channel", "group"] | float = "none",
        which: Literal["everything", "weights", "inner weights"] | Callable[..., Any] = "everything",
        group_size: Count = 64,
    ) -> None:
        if isinstance(scale, bool) or (not isinstance(scale, str) and not 0 < scale < math.inf):
            raise BadSetting("Labelling.scale", scale, "'none', 'layer', 'channel', 'group' or a number above 0")
        if isinstance(exclude, str):
            raise BadSetting("Labelling.exclude", exclude, f"a list of patterns, as [{exclude!r}]")
        self.model, self._scale, self._group_size = model, scale, group_size
        self._trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._trainable:
            raise BadInput("the network has no trainable parameter: there is nothing to label or to train")
        selected = PRESETS[which](model) if isinstance(which, str) else set(which(model))
        names = dict(model.named_parameters(remove_duplicate=False))
        if unknown := selected - names.keys():
            raise BadInput(f"Labelling.which selects {min(unknown)!r}: there is no such parameter", "Labelling.which")
        chosen = {id(names[name]) for name in selected}  # a parameter may have several names
        aliases: dict[int, list[str]] = {}
        for name, p in names.items():
            aliases.setdefault(id(p), []).append(name)
        sets = _sets_by_name({name: aliases[id(p)] for name, p in self._trainable.items()}, levels, exclude)
        selected_sets = {name: found for name, found in sets.items() if id(self._trainable[name]) in chosen}
        self._matrices = other_matrices(model)
        self._sets = levels_for_the_short(selected_sets, self._trainable, self._matrices)
        if levels is not None and not self._sets:
            raise BadInput(
                "which and exclude leave no parameter to label: leave something in, or unfreeze the layers you mean",
                "Labelling.exclude",
            )
        if levels is not None and which in ("weights", "inner weights"):
            excluded = {name for name in self._trainable if name not in sets}
            warn_of_unknown_layers(model, {*self._sets, *excluded}, PRODUCTS)
        self.lay_out()
        for name in self.labelled.spans:
            if not self.labelled.view(name, self.labelled.w).isfinite().all():
                raise BadInput(f"{name} has weights that are infinite or no numbers: mend it, or exclude it")

    def lay_out(self, group_of: Mapping[str, int] | None = None, shard: bool = False) -> None:
        """Lay the parameters out in memory: by level set and optimizer group, in the network's order otherwise.

        Args:
            group_of: the number of each trainable parameter's group; all are in one by default.
            shard: let processes that train together share the variables.
        """
        model, trainable, sets, team = self.model, self._trainable, self._sets, present_team()
        self.group_of = dict.fromkeys(trainable, 0) if group_of is None else dict(group_of)
        self.sharded = shard and team.world_size > 1
        rank = {level_set: place for place, level_set in enumerate(dict.fromkeys(sets.values()))}
        labelled = sorted(sets, key=lambda n: (rank[sets[n]], self.group_of[n]))  # stable: one group changes nothing
        free = sorted((n for n in trainable if n not in sets), key=self.group_of.__getitem__)
        shared = team if self.sharded else None
        self.labelled = FlatParameters({n: trainable[n] for n in labelled}, shared, matrices=self._matrices)
        self.free = FlatParameters({n: trainable[n] for n in free}, shared, adopts_writes=True)
        for name in labelled:
            if self.labelled.matrix(name).turned:
                save_in_order(model.get_submodule(name.rpartition(".")[0]))
        self.scales = self._new_scales()
        self.blocks: list[Block] = []
        for (level_set, group), names in groupby(labelled, lambda n: (sets[n], self.group_of[n])):
            together = list(names)
            first, last = self.labelled.span_of(together)
            w, g = self.labelled.w[first:last], self.labelled.g[first:last]
            scales = None if self.scales is None else self.scales.weights.narrow(first, last)
            layouts = tuple(torch.empty_like(trainable[n], device="meta") for n in together)
            sizes, number, dtype = tuple(of.numel() for of in layouts), len(self.blocks), self.labelled.dtype
            self.blocks.append(Block(level_set, first, w, g, scales, group, dtype, sizes, number, layouts))
        self.local_blocks = self.blocks
        if (shards := self.labelled.shards) is not None:
            self.local_blocks = [b.narrow(*shards.span(b.start, b.start + b.m)) for b in self.blocks]

    def __len__(self) -> int:
        """Return the number of labelled weights."""
        return len(self.labelled)

    @property
    def scale(self) -> Tensor | None:
        """The scale of every labelled weight (m,), in new memory, or None for 1."""
        return None if self.scales is None else self.scales.weights.each()

    @property
    def scale_of_runs(self) -> Tensor | None:
        """The scale of every run of weights that share one (c,), or None for 1."""
        return None if self.scales is None else self.scales.weights.values

    def scale_of(self, name: str, scale_of_runs: Tensor | None = None) -> Tensor | None:
        """Return the scale of each weight of a labelled parameter, in its shape; None for 1.

        Args:
            name: of the parameter.
            scale_of_runs: (c,) those to read it from; the present ones by default.
        """
        if self.scales is None:
            return None
        values, span = self.scales.weights.values if scale_of_runs is None else scale_of_runs, self.labelled.spans[name]
        return self.scales.runs(*span).spread(values[self.scales.span(*span)], self.labelled.parameter(name).shape)

    def run_of(self, name: str) -> int | None:
        """Return how many neighbouring weights of a labelled parameter have a scale in common; None without scales."""
        return None if self.scales is None else self.scales.runs(*self.labelled.spans[name]).size

    def fit_scales(self, reach: float = 1.0) -> None:
        """Fit the scales to the present weights, and multiply them by `reach`; a scale that was given is kept."""
        if self.scales is not None and self.scales.sharing is not None:
            self.scales.set(self._fitted_scales(self.scales, reach))

    def read_scales(self) -> None:
        """Read the scales off weights that lie on levels times scales; a scale that was given is kept."""
        if self.scales is not None and self.scales.sharing is not None:
            self.scales.set(self._scales_of_labels(self.scales))

    def initial_weights(self) -> Tensor:
        """Draw weights (m,): Xavier-uniform for tensors of two or more dimensions, N(0, 0.1²) for the others."""
        start = torch.empty_like(self.labelled.w)
        for name in self.labelled.spans:
            _random_start(self.labelled.view(name, start))
        return start

    @property
    def flat_permutation(self) -> list[int] | None:
        """The numbers, in the network's order, of the parameters as the vectors have them; None for one group."""
        if len(set(self.group_of.values())) < 2:
            return None
        numbers = {name: number for number, name in enumerate(self.group_of)}
        return [numbers[name] for name in (*self.labelled.spans, *self.free.spans)]

    def collect_gradients(self) -> tuple[Tensor, Tensor]:
        """Return what backward has accumulated for the labelled and for the free parameters: (m,) each."""
        self.labelled.collect()
        self.free.collect()
        return self.labelled.g, self.free.g

    def check_not_replaced(self) -> None:
        """Raise BadInput if parameters of the network were replaced, as by `load_state_dict(assign=True)`."""
        present = dict(self.model.named_parameters())
        self.labelled.check_same_parameters(present)
        self.free.check_same_parameters(present)

    def check_all_known(self) -> None:
        """Raise BadInput if a parameter asks for a gradient that did not when the labelling was built."""
        for name, p in self.model.named_parameters():
            if p.requires_grad and name not in self.labelled.spans and name not in self.free.spans:
                raise BadInput(f"{name} was frozen when the labelling was built, and is not now: build it again")

    def mark_clean(self) -> None:
        """Remember the parameters' versions, to detect later writes by others."""
        self.labelled.mark_clean()
        self.free.mark_clean()

    def scatter_gradients(self) -> None:
        """Replace this process's part of the gradients, when they are collected, by the mean over the processes."""
        self.labelled.scatter_gradient()
        self.free.scatter_gradient()

    def gather_weights(self) -> None:
        """Bring what the processes have moved, each its part, into every one of them."""
        self.labelled.gather_weights()
        self.free.gather_weights()

    def publish(self) -> None:
        """Show the network the weights of the vectors."""
        self.labelled.publish()
        self.free.publish()

    def release(self) -> None:
        """Give every parameter memory of its own: the network is an ordinary one again."""
        self.labelled.release()
        self.free.release()

    def names_in(self, block: Block) -> list[str]:
        """Return the names of the parameters in a block; for a shard, of those in the whole block."""
        block = self.blocks[block.number]
        return [n for n, (first, _) in self.labelled.spans.items() if block.start <= first < block.start + block.m]

    def select(self, which: str | Sequence[str] | Callable[..., Any], setting: str) -> set[str]:
        """Return the names of labelled parameters that patterns, a preset or a function choose.

        Args:
            which: a list of patterns, the name of a preset, or a function from the network to names.
            setting: what the choice is called in errors.
        """
        if isinstance(which, str) and which not in PRESETS:
            raise BadSetting(setting, which, f"{', '.join(map(repr, PRESETS))}, or a list of patterns of names")
        if isinstance(which, str):
            found = PRESETS[which](self.model)
        elif isinstance(which, Sequence):
            names = list(self.labelled.spans)
            if idle := [p for p in which if not any(fnmatchcase(name, p) for name in names)]:
                raise BadInput(
                    f"the pattern {idle[0]!r} matches no labelled parameter; there are {', '.join(names)}", setting
                )
            found = {name for name in names if any(fnmatchcase(name, p) for p in which)}
        else:
            found = set(which(self.model))
        if not (found := found & self.labelled.spans.keys()):
            raise BadInput(f"{setting} selects no labelled parameter", setting)
        return found

    def summary(self) -> str:
        """Return a table of what is labelled, with which levels, scale and bits, and what stays free."""
        rows = [["parameter", "shape", "levels", "scale", "bits"]]
        for name, p in self.model.named_parameters():
            shape = "x".join(map(str, p.shape)) or "1"
            if name in self.labelled.spans:
                block = self.block_of(name)
                levels = " ".join(f"{q:g}" for q in block.levels.values) if block.d <= 4 else f"{block.d} levels"
                rows.append([name, shape, levels, self._scale_of(name), f"{block.levels.bits:,}"])
            else:
                rows.append([name, shape, "free" if name in self.free.spans else "frozen", "", f"{8 * p.itemsize}"])
        bits = sum(block.m * block.levels.bits for block in self.blocks)
        rest = sum(p.numel() * p.itemsize for n, p in self.model.named_parameters() if n not in self.labelled.spans)
        total = f"{len(self):,} weights on levels, {bits / 8e3:,.1f} kB; what is not labelled, {rest / 1e3:,.1f} kB"
        frozen = {name for name, _ in self.model.named_parameters()} - self._trainable.keys()
        told = coverage(self.model, self.labelled.spans, PRODUCTS, frozen)
        return "\n".join([aligned(rows), *told, total])

    def _scale_of(self, name: str) -> str:
        if self.scales is None:
            return "1"
        found = self.scales.weights.values[self.scales.span(*self.labelled.spans[name])]
        low, high = found.min().item(), found.max().item()
        return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"

    def zero_gradient(self) -> None:
        """Clear what backward has accumulated."""
        self.labelled.zero_gradient()
        self.free.zero_gradient()

    def block_of(self, name: str) -> Block:
        """Return the block that the labelled parameter `name` belongs to."""
        first, last = self.labelled.spans[name]
        return next(block for block in self.blocks if block.start <= first and last <= block.start + block.m)

    def check_on_levels(self, state: Mapping[str, Tensor], scale: Tensor | None = None) -> None:
        """Raise unless every labelled parameter in a state dict of the network is exactly on its levels.

        Args:
            state: of the network.
            scale: of the runs (c,) then, where scales are learned; the present one by default.
        """
        for name in self.labelled.spans:
            q, values = self.block_of(name).q, state[name].to(self.labelled.w.device)
            own = 1 if self.scales is None else self.scale_of(name, scale)
            if not torch.stack([values == (level * own).to(values.dtype) for level in q]).any(0).all():
                raise BadInput(f"{name} has weights that are not on the levels {q.tolist()}")

    def _new_scales(self) -> Scales | None:
        if self._scale == "none":
            return None
        if self._scale == "group" and any(isinstance(of, Trellis) for of in self._sets.values()):
            raise BadSetting("Labelling.scale", "group", "'channel', 'layer', 'none' or a number with a trellis")
        if not isinstance(self._scale, str):
            scales = Scales(self.labelled, None)
            scales.weights.values.fill_(self._scale)
        else:
            scales = Scales(self.labelled, self._scale, self._group_size)
            scales.set(self._fitted_scales(scales))
        return scales

    def _fitted_scales(self, scales: Scales, reach: float = 1.0) -> Tensor:
        """Return the mean magnitude of the weights of each run over that of their levels, times `reach`: (c,)."""
        magnitudes = scales.average(self.labelled.w, of=torch.abs)
        for name, (first, last) in self.labelled.spans.items():
            found = magnitudes[scales.span(first, last)]
            if not (found > 0).all():
                found.copy_(torch.where(found > 0, found, _random_magnitude(self.labelled.parameter(name))))
            levels = [abs(v) for v in self._sets[name].values]
            found.mul_(reach).div_(sum(levels) / len(levels))
        return magnitudes

    def _scales_of_labels(self, scales: Scales) -> Tensor:
        """Return the scale of each run of weights that are on scaled levels: (c,).

        The largest magnitude of a run is that of one of the levels: the one that all its weights fit.
        """
        found = []
        for name, (first, last) in self.labelled.spans.items():
            runs, w = scales.runs(first, last), self.labelled.w[first:last]
            q = w.new_tensor(self._sets[name].values)
            largest, middles = runs.largest(w.abs()), (q[1:] + q[:-1]) / 2
            best, least = torch.ones_like(largest), torch.full_like(largest, torch.inf)
            for magnitude in sorted({abs(v) for v in self._sets[name].values if v}, reverse=True):
                trial = torch.where(largest > 0, largest / magnitude, 1.0)
                values = w / runs.each(trial).flatten()
                error = runs.largest((values - q[torch.bucketize(values, middles)]).abs())
                best, least = torch.where(error < least, trial, best), torch.minimum(error, least)
            if not (least < LEVEL_TOLERANCE).all():
                raise BadInput(
                    f"{name} is not on the levels {list(self._sets[name].values)} times a scale: round the network "
                    "first, or start at its weights: start='weights'",
                    "Experiment.start",
                )
            found.append(best)
        return torch.cat(found)


def _random_start(tensor: Tensor) -> Tensor:
    return nn.init.xavier_uniform_(tensor) if tensor.dim() > 1 else nn.init.normal_(tensor, std=0.1)


def _random_magnitude(tensor: Tensor) -> float:
    """Return the mean magnitude of `_random_start`."""
    if tensor.dim() < 2:
        return 0.1 * math.sqrt(2 / math.pi)
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(tensor)
    return math.sqrt(6 / (fan_in + fan_out)) / 2


def _sets_by_name(
    names: Mapping[str, Sequence[str]], levels: Levels | Mapping[str, Levels] | None, exclude: Sequence[str]
) -> dict[str, LevelSet]:
    """Return the level set of every labelled parameter, in their order, given all the names of each of them."""
    if levels is None:
        if exclude:
            raise BadInput(
                f"Labelling.exclude = {list(exclude)} without levels: there is nothing to exclude from",
                "Labelling.exclude",
            )
        return {}
    patterns = dict(levels) if isinstance(levels, Mapping) else {"*": levels}

    def fits(name: str, pattern: str) -> bool:
        return any(fnmatchcase(alias, pattern) for alias in names[name])

    first = {name: next((p for p in patterns if fits(name, p)), None) for name in names}
    excluded = {p: [name for name in names if fits(name, p)] for p in exclude}
    idle = [p for p in patterns if p not in first.values()] + [p for p, found in excluded.items() if not found]
    if idle:
        raise BadInput(
            f"the pattern {idle[0]!r} of the labelling matches no parameter (the first match counts); "
            f"there are {', '.join(names)}",
            "Labelling.levels" if idle[0] in patterns else "Labelling.exclude",
        )
    out = {name for found in excluded.values() for name in found}
    return {
        name: given if isinstance(given := patterns[pattern], LevelSet) else LevelSet(given)
        for name, pattern in first.items()
        if pattern is not None and name not in out
    }
