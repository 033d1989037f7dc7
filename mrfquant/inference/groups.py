"""Groups of parameters with settings of their own, as a torch optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from mrfquant.errors import BadInput
from mrfquant.labelling import Labelling
from mrfquant.labelling.selection import GROUP_PRESETS

Key = str | Callable[..., Any]
Groups = Mapping[Key, Mapping[str, Any]]


@dataclass
class OptimizerGroups:
    """Settings of the optimizer for some of the parameters.

    Attributes:
        settings: one mapping for each group; one that is empty without groups.
        of_scales: for learned scales, always a group of their own.
        of_parameter: the number of every trainable parameter's group; None without groups.
    """

    settings: list[dict[str, Any]]
    of_scales: dict[str, Any]
    of_parameter: dict[str, int] | None

    @classmethod
    def for_labelling(cls, labelling: Labelling, groups: Groups | None) -> OptimizerGroups:
        """Sort the parameters of a labelling into groups, as {"norms and biases": {"weight_decay": 0.0}} says."""
        given = dict(groups or {})
        of_scales = dict(given.pop("scales", {}))
        if not given:
            return cls([{}], of_scales, None)
        trainable = dict.fromkeys(labelling.group_of)
        settings, numbers = _groups_by_name(labelling.model, trainable, set(labelling.labelled.spans), given)
        return cls(settings, of_scales, numbers)

    def check(self, known: set[str]) -> None:
        """Raise BadInput for a setting that the optimizer does not have: torch takes any, and ignores it."""
        for settings in (*self.settings, self.of_scales):
            if unknown := set(settings) - known:
                raise BadInput(
                    f"groups sets {min(unknown)!r}, the optimizer has {', '.join(sorted(known))}", "Experiment.groups"
                )


def _groups_by_name(
    model: nn.Module, trainable: Mapping[str, Any], labelled: set[str], groups: Groups
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the settings of each group, and the number of every parameter's group, in the order of the parameters.

    Parameters that no key fits are the last group, without settings; there is none if every one has a key.
    """
    members = [_members(key, model, trainable, labelled) for key in groups]
    numbers = {n: next((i for i, found in enumerate(members) if n in found), len(members)) for n in trainable}
    for number, key in enumerate(groups):
        if number not in numbers.values():
            raise BadInput(
                f"the key {_name(key)!r} of groups matches no parameter (the first match counts); "
                f"presets are 'labelled', {', '.join(map(repr, GROUP_PRESETS))}; there are {', '.join(trainable)}",
                "Experiment.groups",
            )
    settings = [dict(given) for given in groups.values()]
    return settings + [{}] * (len(members) in numbers.values()), numbers


def _members(key: Key, model: nn.Module, trainable: Mapping[str, Any], labelled: set[str]) -> set[str]:
    if not isinstance(key, str):
        found = set(key(model))
        if unknown := found - {name for name, _ in model.named_parameters(remove_duplicate=False)}:
            raise BadInput(f"{_name(key)} of groups names {min(unknown)!r}: there is no such parameter")
        return found
    if key == "labelled":
        return labelled
    if key in GROUP_PRESETS:
        return GROUP_PRESETS[key](model)
    return {name for name in trainable if fnmatchcase(name, key)}


def _name(key: Key) -> str:
    return key if isinstance(key, str) else getattr(key, "__name__", repr(key))
