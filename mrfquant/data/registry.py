"""Data sets by name, for gin files and for packed networks, which say what they were trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mrfquant.config.settings import configurable
from mrfquant.data.dataset import Dataset

Loader = Callable[[Path], Dataset]
DATASETS: dict[str, Loader] = {}


def dataset(load: Loader) -> Loader:
    """Make a function from the data root to a data set known by its name, here and to gin; the data set's `name` is
    the function's."""
    DATASETS[load.__name__] = configurable(load, supplied=["root"])
    return DATASETS[load.__name__]
