"""The interface of data sets: splits, batches, an ordered pass, and a name for gin and packed files."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch

from mrfquant.config.settings import configurable

SplitName = Literal["train", "val", "test"]
CPU = torch.device("cpu")
Batch = tuple[Any, Any]  # inputs and targets; the inputs may also be a tuple or a dict of a network's arguments


class Stream(Protocol):
    """An endless stream of batches that can be saved and continued."""

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Dataset(ABC):
    """A training, a validation and a test split.

    `Images`, `Tokens` and `Pairs` hold theirs as tensors, `Loaders` takes torch's DataLoaders.

    Attributes:
        name: as in results.
        device: where the batches are wanted.
        unit: what one example is called: images, windows.
        stand_in: marks synthetic data that only has the form of the named data set.
        arguments: what its function was called with beside the data root, defaults left out; see `dataset`.
    """

    name: str
    device: torch.device
    unit: str = "examples"
    stand_in: bool = False
    arguments: dict[str, Any]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one input; a network is built from it and `outputs`."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a network gives for an input, or for each part of it: classes, tokens, targets."""

    @abstractmethod
    def size(self, split: SplitName) -> int:
        """Return the number of examples in a split."""

    @abstractmethod
    def stream(self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> Stream:
        """Return batches of the training split without end; `batch_size` counts those of all processes."""

    @abstractmethod
    def ordered(self, split: SplitName, batch_size: int = 1000, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield a split once, without augmentation; each of several processes gets a share of it."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Dataset:
        """Move the data set and its batches to a device."""

    def description(self) -> dict[str, list[Any]]:
        """Describe inputs for packed files: `mean` and `std` of images, `classes` in the order of the outputs."""
        return {"mean": [], "std": [], "classes": []}


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
