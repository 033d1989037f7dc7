"""Any `torch.utils.data.DataLoader` as a data set."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from mrfquant.data.base import CPU, Batch, Dataset, SplitName
from mrfquant.data.batches import epoch_generator
from mrfquant.errors import BadInput


class Loaders(Dataset):
    """Three DataLoaders that give batches (inputs, targets); they decide the batch size.

    Inputs may be a tensor, or a tuple or dict of a network's arguments. With `shuffle=True` the order of an epoch is
    decided by the run's seed, so that a resumed run reads the batches that it would have read, after passing over those
    it had read before. A loader that keeps its own position (`state_dict`, as torchdata's StatefulDataLoader) is asked
    for it. What workers draw at random, such as augmentation, is not repeated.

    Args:
        name: as in results.
        train: the training split.
        val: the validation split.
        test: the test split.
        shape: of one input.
        outputs: how many numbers a network gives for it.
    """

    def __init__(
        self,
        name: str,
        train: DataLoader[Any],
        val: DataLoader[Any],
        test: DataLoader[Any],
        shape: tuple[int, ...],
        outputs: int,
    ) -> None:
        self.name, self.train, self.val, self.test = name, train, val, test
        self._shape, self._outputs = shape, outputs
        self.device, self.arguments = CPU, {}

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def outputs(self) -> int:
        return self._outputs

    def size(self, split: SplitName) -> int:
        try:
            return len(getattr(self, split).dataset)
        except TypeError:
            raise BadInput(f"data set {self.name}: the {split} loader does not say how many examples it has") from None

    def stream(self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> LoaderStream:
        if world_size > 1:
            raise BadInput(f"data set {self.name}: DataLoaders are read by one process; give tensors for several")
        return LoaderStream(self.train, seed, self.device)

    def ordered(self, split: SplitName, batch_size: int = 1000, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        return (move_batch(batch, self.device) for batch in getattr(self, split))

    def to(self, device: torch.device | str) -> Loaders:
        moved_there = copy.copy(self)
        moved_there.device = torch.device(device)
        return moved_there


class LoaderStream:
    """A training loader read again and again, with its position."""

    def __init__(self, loader: DataLoader[Any], seed: int, device: torch.device) -> None:
        self.loader, self.seed, self.device = loader, seed, device
        self.epoch, self.batch = 0, 0
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> LoaderStream:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            self._batches = self._begin()
        try:
            found = next(self._batches)
        except StopIteration:
            if not self.batch:
                raise BadInput("the training loader gives no batch") from None
            self.epoch, self.batch, self._batches = self.epoch + 1, 0, None
            return next(self)
        self.batch += 1
        return move_batch(found, self.device)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "batch": self.batch}
        if hasattr(self.loader, "state_dict"):
            state["loader"] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        restore = getattr(self.loader, "load_state_dict", None) if "loader" in state else None
        if restore is not None:
            restore(state["loader"])
        self._batches = self._begin()
        for _ in range(self.batch if restore is None else 0):
            next(self._batches)

    def _begin(self) -> Iterator[Any]:
        generator = epoch_generator(self.seed, self.epoch)
        for part in (self.loader, self.loader.sampler):  # the sampler draws the order, the loader its workers' seeds
            if hasattr(part, "generator"):
                part.generator = generator
        return iter(self.loader)


def move_batch(batch: Any, device: torch.device) -> Any:
    """Move everything in a batch to the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: move_batch(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(move_batch(value, device) for value in batch)
    return batch
