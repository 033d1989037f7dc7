"""All that the package reads or sets of gin's private state; gin has no public functions for it.

setup.py bounds gin's version for this reason. No other file may name what starts with `gin.config._`: a test sees to
that, and that the names are there in the gin that is installed.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import gin

Bindings = Mapping[tuple[str, str], Mapping[str, Any]]  # (scope, selector) -> parameter -> value
STATE = ("_CONFIG", "_OPERATIVE_CONFIG", "_SINGLETONS", "_IMPORTS")  # gin's globals that reading a file changes


@contextmanager
def isolated_gin() -> Iterator[None]:
    """Leave gin as it was, whatever configuration is read within the block."""
    kept = {name: copy.deepcopy(getattr(gin.config, name)) for name in STATE}
    folders, locked = search_folders(), gin.config_is_locked()
    try:
        yield
    finally:
        for name, value in kept.items():
            getattr(gin.config, name).clear()
            getattr(gin.config, name).update(value)
        set_search_folders(folders)
        gin.config._set_config_is_locked(locked)


@contextmanager
def mappings_in_their_order() -> Iterator[None]:
    """Keep gin from sorting the keys of mappings: where the first key that fits counts, order has a meaning."""
    module = gin.config.pprint
    try:
        gin.config.pprint = SimpleNamespace(pformat=partial(module.pformat, sort_dicts=False))
        yield
    finally:
        gin.config.pprint = module


def bound() -> Bindings:
    """Return what the configuration binds."""
    return gin.config._CONFIG


def used() -> Bindings:
    """Return every parameter that gin has passed so far, those left at their defaults too."""
    return gin.config._OPERATIVE_CONFIG


def search_folders() -> list[str]:
    """Return where gin looks for the files that are included, in order."""
    return list(gin.config._LOCATION_PREFIXES)


def set_search_folders(folders: Sequence[str]) -> None:
    """Look for included files there and nowhere else."""
    gin.config._LOCATION_PREFIXES[:] = folders


def registered() -> list[str]:
    """Return the full names of all parts, 'module.Name'."""
    return [selector for selector, _ in gin.config._REGISTRY.items()]


def registered_as(name: str) -> list[str]:
    """Return the full names of the parts that a gin file may mean by `name`."""
    return gin.config._REGISTRY.matching_selectors(name)
