"""Labelled images held as tensors: three splits of them, and what is known of a data set before any file is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mrfquant.data.base import CPU, Batch, Dataset, SplitName
from mrfquant.data.batches import place_tensors
from mrfquant.data.image_batches import Augmentation, ImageBatches, normalise
from mrfquant.errors import BadInput


@dataclass(frozen=True, eq=False)
class Split:
    """Images uint8 (n, c, h, w) with their labels int64 (n,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise BadInput(f"images are {_describe(self.images)}, expected uint8 of shape (n, c, h, w)")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise BadInput(f"labels are {_describe(self.labels)}, expected int64 of shape ({len(self.images)},)")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DatasetInfo:
    """The facts about a data set that its loader and its stand-in share; mean and std are those of pixels in [0, 1]."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augmentation | None

    def dataset(self, train: Split, val: Split, test: Split, stand_in: bool = False) -> Images:
        """Return the data set of these facts with the given splits."""
        return Images(self.name, train, val, test, self.mean, self.std, self.classes, self.augment, stand_in)


@dataclass(frozen=True, eq=False)
class Images(Dataset):
    """Training, validation and test images of one shape, each of one of several classes.

    Attributes:
        mean, std: per channel, of training images scaled to [0, 1].
        classes: the name of each label.
        augment: how the images vary in training, if they do.
    """

    name: str
    train: Split
    val: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    augment: Augmentation | None
    stand_in: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    device: torch.device = CPU
    unit = "images"

    def __post_init__(self) -> None:
        if not isinstance(self.augment, Augmentation | None):
            raise BadInput(f"data set {self.name}: augment is {self.augment!r}, expected an Augmentation or None")
        channels = self.shape[0]
        usable = all(math.isfinite(m) for m in self.mean) and all(0 < s < math.inf for s in self.std)
        if not len(self.mean) == len(self.std) == channels or not usable:
            raise BadInput(
                f"data set {self.name}: mean {self.mean} and std {self.std},"
                f" expected one number for each of the {channels} channels, finite, and std above 0"
            )
        for name, split in (("train", self.train), ("val", self.val), ("test", self.test)):
            if len(split) == 0:
                raise BadInput(f"data set {self.name}: the {name} split is empty")
            if split.images.shape[1:] != self.shape:
                raise BadInput(
                    f"data set {self.name}: {name} images have shape {tuple(split.images.shape[1:])},"
                    f" expected {self.shape} as in the train split"
                )
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= self.num_classes:
                raise BadInput(
                    f"data set {self.name}: {name} labels run from {low} to {high},"
                    f" expected 0 to {self.num_classes - 1} for {self.num_classes} classes"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(c, h, w) of an image."""
        c, h, w = self.train.images.shape[1:]
        return c, h, w

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def outputs(self) -> int:
        return self.num_classes

    def size(self, split: SplitName) -> int:
        return len(getattr(self, split))

    def stream(self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> ImageBatches:
        how = (batch_size, self.mean, self.std, self.augment, seed, rank, world_size, self.device)
        return ImageBatches(self.train.images, self.train.labels, *how)

    def ordered(self, split: SplitName, batch_size: int = 1000, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        if batch_size < 1:
            raise BadInput(f"batch size {batch_size}, expected at least 1")
        part = getattr(self, split)
        mine = (tensor[rank::world_size].split(batch_size) for tensor in (part.images, part.labels))
        for images, labels in zip(*mine, strict=True):
            yield normalise(images.to(self.device), self.mean, self.std), labels.to(self.device)

    def to(self, device: torch.device | str) -> Images:
        device = torch.device(device)
        splits = {id(s): s for s in (self.train, self.val, self.test)}  # shared images stay shared
        tensors = place_tensors([t for s in splits.values() for t in (s.images, s.labels)], device)
        moved = {key: Split(*tensors[2 * i : 2 * i + 2]) for i, key in enumerate(splits)}
        train, val, test = (moved[id(s)] for s in (self.train, self.val, self.test))
        return replace(self, train=train, val=val, test=test, device=device)

    def description(self) -> dict[str, list[Any]]:
        return {"mean": list(self.mean), "std": list(self.std), "classes": list(self.classes)}


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
