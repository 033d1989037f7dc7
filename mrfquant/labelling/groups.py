"""Groups of parameters with settings of their own, as a torch optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from mrfquant.errors import BadInput
from mrfquant.labelling.selection import GROUP_PRESETS

Key = str | Callable[..., Any]
Groups = Mapping[Key, Mapping[str, Any]]


def groups_by_name(
    model: nn.Module, trainable: Mapping[str, nn.Parameter], labelled: set[str], groups: Groups
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The settings of each group, and the number of every parameter's group, in the order of the parameters.

    Parameters that no key fits are the last group, without settings; there is none if every one has a key.
    """
    members = [_members(key, model, trainable, labelled) for key in groups]
    numbers = {n: next((i for i, found in enumerate(members) if n in found), len(members)) for n in trainable}
    for number, key in enumerate(groups):
        if number not in numbers.values():
            raise BadInput(
                f"the key {_name(key)!r} of Labelling.groups decides about no parameter (the first that fits counts); "
                f"presets are 'labelled', {', '.join(map(repr, GROUP_PRESETS))}; there are {', '.join(trainable)}",
                "Labelling.groups",
            )
    settings = [dict(given) for given in groups.values()]
    return settings + [{}] * (len(members) in numbers.values()), numbers


def _members(key: Key, model: nn.Module, trainable: Mapping[str, nn.Parameter], labelled: set[str]) -> set[str]:
    if not isinstance(key, str):
        found = set(key(model))
        if unknown := found - {name for name, _ in model.named_parameters(remove_duplicate=False)}:
            raise BadInput(f"{_name(key)} of Labelling.groups names {min(unknown)!r}: there is no such parameter")
        return found
    if key == "labelled":
        return labelled
    if key in GROUP_PRESETS:
        return GROUP_PRESETS[key](model)
    return {name for name in trainable if fnmatchcase(name, key)}


def _name(key: Key) -> str:
    return key if isinstance(key, str) else getattr(key, "__name__", repr(key))
