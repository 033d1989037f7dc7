"""Which parameters of a network are labelled, with which levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mrfquant.compute import present_team
from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.errors import BadInput, BadSetting
from mrfquant.labelling.block import Block, Form
from mrfquant.labelling.flat import FlatParameters
from mrfquant.labelling.groups import Groups, groups_by_name
from mrfquant.labelling.levels import LevelSet
from mrfquant.labelling.scales import Scales, Sharing
from mrfquant.labelling.selection import PRESETS
from mrfquant.text import aligned

Levels = Sequence[float] | LevelSet
OFF_LEVELS = 0.05  # of a scale, that a weight on a level may be off it, in any precision


@configurable(supplied=["model"])
class Labelling:
    """The trainable parameters of a network as variables: labelled ones in blocks, the others free.

    All labelled parameters lie in one vector, block after block, and all free ones in another; the network's own
    parameters become views of them. Parameters that appear twice count once, frozen ones stay outside.

    Args:
        model: the network, already on its device.
        levels: the levels of every labelled parameter, or a mapping from name patterns (as in a shell: '*' and '?') to
            levels of which the first that matches counts; None labels nothing.
        which: what is labelled: 'everything', as in the paper; 'weights', those of linear, convolutional, attention and
            recurrent layers; 'inner weights', these without the first and the last layer's; or a function from the
            network to the names, such as `weights_of(nn.Linear)`. Patterns choose among these.
        exclude: patterns of names that stay free in any case.
        start: where solvers start: 'random', as in the paper, or 'weights', at the weights that the network has, so
            that a trained one keeps what it has learned. Take a `scale` for it: the levels have to reach the weights.
            Scales that are not a number are multiplied by `reach` for it, and it pays to learn them. 'labels' is for a
            network that has been rounded (`mrfquant.round_network`): its weights are on levels times scales, which are
            read off them, and solvers start at their labels.
        scale: 'none' uses the levels as they are; a number multiplies them; 'layer', 'channel' and 'group' multiply the
            levels of each tensor, of each slice along its first dimension (a layer's output channel), or of each run
            of `group_size` weights of such a slice, by the mean magnitude of the initial weights there over that of
            the levels, as Binary Weight Networks do. Where all of these are 0, a random start's magnitude is taken.
        learn_scale: let the optimizer move the scales together with the variables.
        groups: settings of the optimizer for some of the parameters, as {"norms and biases": {"weight_decay": 0.0}}. A
            key is a pattern of names, 'labelled', 'norms and biases' (parameters of fewer than two dimensions, and
            those of norms), a name that `which` takes, or a function from the network to names; the first that fits
            counts. What fits none has the optimizer's own settings. 'scales' are the learned ones, always a group.
        group_size: weights that share a scale where it is 'group'; the last run of a slice may be shorter.
        reach: how far the levels go where solvers start at the weights, in mean magnitudes of these: twice it reaches
            nine of ten weights; a deep network with batch norm needs four times to begin where the float one is.
        form: of the auxiliary variables of three levels and more: 'line', a number for each weight, or 'planes', one
            for each level of it, as in the paper; see `mrfquant.projections`. Two levels have one number in any case.
        shard: let processes that train together share the variables out: each keeps and moves those of its part, with
            the optimizer's state, and has the network's weights and gradient in full. For solvers, energies and
            optimizers that treat each weight by itself. Alone, it changes nothing.

    Attributes:
        model: the network.
        labelled: the labelled parameters in one vector.
        free: the other parameters in one vector.
        blocks: views of `labelled`, one per level set and group.
        sharded: whether processes share the variables out.
        parts: what this process keeps variables for of each block: the blocks themselves, if they are not shared out.
        settings: of the optimizer, one mapping for each group.
        scale_settings: likewise for learned scales.
        scales: of runs of weights, or None for 1.
    """

    def __init__(
        self,
        model: nn.Module,
        levels: Levels | Mapping[str, Levels] | None = None,
        exclude: Sequence[str] = (),
        scale: Literal["none", "layer", "channel", "group"] | float = "none",
        which: Literal["everything", "weights", "inner weights"] | Callable[..., Any] = "everything",
        start: Literal["random", "weights", "labels"] = "random",
        learn_scale: bool = False,
        groups: Groups | None = None,
        group_size: Count = 64,
        reach: Positive = 2.0,
        form: Form = "line",
        shard: bool = False,
    ) -> None:
        if isinstance(scale, bool) or (not isinstance(scale, str) and not 0 < scale < math.inf):
            raise BadSetting("Labelling.scale", scale, "'none', 'layer', 'channel', 'group' or a number above 0")
        if isinstance(exclude, str):
            raise BadSetting("Labelling.exclude", exclude, f"a list of patterns, as [{exclude!r}]")
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise BadInput("the network has no trainable parameter: there is nothing to label or to train")
        self.model, self.start, self.reach = model, start, reach
        selected = PRESETS[which](model) if isinstance(which, str) else set(which(model))
        names = dict(model.named_parameters(remove_duplicate=False))
        if unknown := selected - names.keys():
            raise BadInput(f"Labelling.which selects {min(unknown)!r}: there is no such parameter", "Labelling.which")
        chosen = {id(names[name]) for name in selected}  # a parameter may have several names
        sets = {n: s for n, s in _sets_by_name(trainable, levels, exclude).items() if id(trainable[n]) in chosen}
        if levels is not None and not sets:
            raise BadInput("which and exclude leave no parameter to label: leave something in", "Labelling.exclude")
        groups = dict(groups or {})
        self.scale_settings = dict(groups.pop("scales", {}))
        if self.scale_settings and not learn_scale:
            raise BadSetting(
                "Labelling.groups", {"scales": ...}, "Labelling.learn_scale = True with settings of scales"
            )
        self.grouped = bool(groups)
        self.settings, self.group_of = groups_by_name(model, trainable, set(sets), groups)
        rank = {level_set: place for place, level_set in enumerate(dict.fromkeys(sets.values()))}
        ordered = sorted(sets, key=lambda n: (rank[sets[n]], self.group_of[n]))  # stable: one group changes nothing
        free = sorted((n for n in trainable if n not in sets), key=self.group_of.__getitem__)
        team = present_team()
        self.sharded = shard and team.world_size > 1
        self.labelled = FlatParameters({n: trainable[n] for n in ordered}, team if self.sharded else None)
        self.free = FlatParameters({n: trainable[n] for n in free}, team if self.sharded else None)
        if learn_scale and scale == "none":
            raise BadSetting("Labelling.learn_scale", True, "False where there is no scale: set Labelling.scale")
        self.scales = self._scales(sets, scale, group_size, learn_scale)
        self.blocks: list[Block] = []
        for (level_set, group), names_in_it in groupby(ordered, lambda n: (sets[n], self.group_of[n])):
            together = list(names_in_it)
            first, last = self.labelled.span_of(together)
            w, g = self.labelled.w[first:last], self.labelled.g[first:last]
            part = None if self.scale is None else self.scale[first:last]
            sizes, number = tuple(trainable[n].numel() for n in together), len(self.blocks)
            self.blocks.append(Block(level_set, first, w, g, part, group, self.labelled.dtype, form, sizes, number))
        self.parts = self.blocks
        if (shards := self.labelled.shards) is not None:
            self.parts = [b.part(*shards.span(b.start, b.start + b.m)) for b in self.blocks]

    def __len__(self) -> int:
        """The number of labelled variables."""
        return len(self.labelled)

    @property
    def scale(self) -> Tensor | None:
        """The scale of every labelled weight (m,), or None for 1."""
        return None if self.scales is None else self.scales.each

    @property
    def learned(self) -> Scales | None:
        """The scales, if the optimizer moves them."""
        return self.scales if self.scales is not None and self.scales.learned else None

    def initial_weights(self) -> Tensor:
        """A random start (m,): Xavier-uniform for tensors of two or more dimensions, N(0, 0.1²) for the others."""
        start = torch.empty_like(self.labelled.w)
        for name in self.labelled.spans:
            _random_start(self.labelled.view(name, start))
        return start

    @property
    def order(self) -> list[int] | None:
        """Where the parameters are in the vectors: their numbers in the network's order; None without groups."""
        numbers = {name: number for number, name in enumerate(self.group_of)}
        return [numbers[name] for name in (*self.labelled.spans, *self.free.spans)] if self.grouped else None

    def gradients(self) -> tuple[Tensor, Tensor]:
        """What backward has accumulated, of the labelled and of the free parameters: (m,) each."""
        self.free.adopt_written()
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

    def frozen(self, variables: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The parts of the variables, and of the free parameters, that belong to parameters frozen by now, each with
        a copy; one of `variables` for each part, with the weights along its last dimension."""
        parts = [self.free.w[first:last] for first, last in self.free.frozen()]
        for first, last in self.labelled.frozen():
            for part, x in zip(self.parts, variables, strict=True):
                start, stop = max(first, part.start), min(last, part.start + part.m)
                if start < stop:
                    parts.append(x[..., start - part.start : stop - part.start])
            if self.learned is not None:
                parts.append(self.learned.part(first, last))
        return [(part, part.clone()) for part in parts]

    def accept_weights(self) -> None:
        """Take the weights as they are for what the solver has made of its variables."""
        self.labelled.accept()
        self.free.accept()

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
        """Of the parameters whose weights are in a block; for a part of one, in the whole block."""
        block = self.blocks[block.number]
        return [n for n, (first, _) in self.labelled.spans.items() if block.start <= first < block.start + block.m]

    def select(self, which: str | Sequence[str] | Callable[..., Any], setting: str) -> set[str]:
        """The names of labelled parameters that patterns of names choose, or what the argument `which` takes.

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
                    f"the pattern {idle[0]!r} fits no labelled parameter; there are {', '.join(names)}", setting
                )
            found = {name for name in names if any(fnmatchcase(name, p) for p in which)}
        else:
            found = set(which(self.model))
        if not (found := found & self.labelled.spans.keys()):
            raise BadInput(f"{setting} selects no labelled parameter", setting)
        return found

    def summary(self) -> str:
        """A table of what is labelled, with which levels, scale and bits, and what stays free."""
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
        return f"{aligned(rows)}\n{total}"

    def _scale_of(self, name: str) -> str:
        if self.scale is None:
            return "1"
        found = self.labelled.view(name, self.scale)
        low, high = found.min().item(), found.max().item()
        return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"

    def zero_gradient(self) -> None:
        """Clear what backward has accumulated."""
        self.labelled.zero_gradient()
        self.free.zero_gradient()

    def block_of(self, name: str) -> Block:
        """The block that the labelled parameter `name` belongs to."""
        first, last = self.labelled.spans[name]
        return next(block for block in self.blocks if block.start <= first and last <= block.start + block.m)

    def check_on_levels(self, state: Mapping[str, Tensor], scale: Tensor | None = None) -> None:
        """Raise unless every labelled parameter in a state dict of the network is exactly on its levels.

        Args:
            state: of the network.
            scale: (m,) that it had then, where scales are learned; the present one by default.
        """
        scale = self.scale if scale is None else scale
        for name in self.labelled.spans:
            q, values = self.block_of(name).q, state[name].to(self.labelled.w.device)
            own = 1 if scale is None else self.labelled.view(name, scale)
            if not torch.stack([values == (level * own).to(values.dtype) for level in q]).any(0).all():
                raise BadInput(f"{name} has weights that are not on the levels {q.tolist()}")

    def _scales(
        self, sets: Mapping[str, LevelSet], scale: str | float, group_size: int, learned: bool
    ) -> Scales | None:
        if scale == "none":
            return None
        if not isinstance(scale, str):
            scales = Scales(self.labelled, None, learned=learned)
            scales.each.fill_(scale)
        else:
            scales = Scales(self.labelled, cast(Sharing, scale), group_size, learned)
            read = self._scales_of_labels if self.start == "labels" else self._initial_scales
            scales.spread(read(sets, scales))
        scales.read()
        return scales

    def _initial_scales(self, sets: Mapping[str, LevelSet], scales: Scales) -> Tensor:
        """The mean magnitude of the weights of each run over that of their levels, with some reach: (c,)."""
        magnitudes = scales.average(self.labelled.w.abs())
        for name, (first, last) in self.labelled.spans.items():
            found = magnitudes[scales.span(first, last)]
            if not (found > 0).all():
                usual = _random_start(torch.empty_like(self.labelled.view(name, self.labelled.w))).abs().mean()
                found.copy_(torch.where(found > 0, found, usual))
            levels = [abs(v) for v in sets[name].values]
            found.mul_(self.reach if self.start == "weights" else 1.0).div_(sum(levels) / len(levels))
        return magnitudes

    def _scales_of_labels(self, sets: Mapping[str, LevelSet], scales: Scales) -> Tensor:
        """Of weights that are on scaled levels, of each run: (c,). The largest magnitude of a run is that of one of the
        levels; which one is what all its weights fit."""
        largest, w = scales.largest(self.labelled.w.abs()), self.labelled.w
        best, least = torch.ones_like(largest), torch.full_like(largest, torch.inf)
        order = sorted({abs(v) for level_set in sets.values() for v in level_set.values if v}, reverse=True)
        for magnitude in order:
            trial = torch.where(largest > 0, largest / magnitude, 1.0)
            scales.spread(trial)
            levels = torch.full_like(w, torch.inf)  # the nearest of each weight
            for name, (first, last) in self.labelled.spans.items():
                q = w.new_tensor(sets[name].values)
                if magnitude in q.abs().tolist():
                    near = torch.bucketize(w[first:last] / scales.each[first:last], (q[1:] + q[:-1]) / 2)
                    levels[first:last] = q[near]
            error = scales.largest((w / scales.each - levels).abs())
            best, least = torch.where(error < least, trial, best), torch.minimum(error, least)
        for name, span in self.labelled.spans.items():
            if not (least[scales.span(*span)] < OFF_LEVELS).all():
                raise BadInput(
                    f"{name} is not on the levels {list(sets[name].values)} times a scale: round the network first, or "
                    "set Labelling.start = 'weights'",
                    "Labelling.start",
                )
        return best


def _random_start(tensor: Tensor) -> Tensor:
    return nn.init.xavier_uniform_(tensor) if tensor.dim() > 1 else nn.init.normal_(tensor, std=0.1)


def _sets_by_name(
    names: Mapping[str, nn.Parameter], levels: Levels | Mapping[str, Levels] | None, exclude: Sequence[str]
) -> dict[str, LevelSet]:
    """The level set of every labelled parameter, in the order of the parameters."""
    if levels is None:
        if exclude:
            raise BadInput(
                f"Labelling.exclude = {list(exclude)} without levels: there is nothing to exclude from",
                "Labelling.exclude",
            )
        return {}
    patterns = dict(levels) if isinstance(levels, Mapping) else {"*": levels}
    first = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in names}
    excluded = {p: [name for name in names if fnmatchcase(name, p)] for p in exclude}
    idle = [p for p in patterns if p not in first.values()] + [p for p, found in excluded.items() if not found]
    if idle:
        raise BadInput(
            f"the pattern {idle[0]!r} of the labelling decides about no parameter (the first that fits counts); "
            f"there are {', '.join(names)}",
            "Labelling.levels" if idle[0] in patterns else "Labelling.exclude",
        )
    out = {name for found in excluded.values() for name in found}
    return {
        name: given if isinstance(given := patterns[pattern], LevelSet) else LevelSet(given)
        for name, pattern in first.items()
        if pattern is not None and name not in out
    }
