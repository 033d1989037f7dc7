"""Data sets by name, for gin files and for packed networks, which say what they were trained on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mrfquant.config.settings import configurable
from mrfquant.data.dataset import Dataset

D = TypeVar("D", bound=Dataset)
DATASETS: dict[str, Callable[..., Dataset]] = {}
STAND_INS: dict[str, Callable[..., Dataset]] = {}  # by the same names: data of the form only, made without any file
STAND_IN = Path("<stand-in>")  # asks for these, in the place of the data root


def dataset(load: Callable[..., D]) -> Callable[..., D]:
    """Make a function from the data root, and settings of its own, to a data set known by its name, here and to gin.

    What it was called with beside the root, defaults left out, is the data set's `arguments`.
    """
    signature = inspect.signature(load)

    @functools.wraps(load)
    def remember(*args: Any, **kwargs: Any) -> D:
        given = signature.bind(*args, **kwargs).arguments
        chosen = {n: v for n, v in given.items() if n != "root" and v != signature.parameters[n].default}
        made: Any = STAND_INS[load.__name__](**chosen) if given.get("root") is STAND_IN else load(*args, **kwargs)
        if isinstance(made, Dataset):  # what is none is refused where it is used
            object.__setattr__(made, "arguments", {"loader": load.__name__, **chosen})
        return made

    known = configurable(remember, supplied=["root"])
    DATASETS[load.__name__] = known
    return known
