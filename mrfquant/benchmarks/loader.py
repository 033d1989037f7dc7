"""Batches cut from tensors on the device against torch's DataLoader, which handles images one by one."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from mrfquant.benchmarks.networks import CIFAR, MNIST, NETWORKS, Float
from mrfquant.benchmarks.timing import Options, Row, in_turns, ratios
from mrfquant.data.image_batches import Augmentation, ImageBatches, normalise

IMAGES = 10_000


def measure_loader(options: Options) -> Iterator[tuple[str, Row]]:
    """Time a batch; the DataLoader's, in the same process, and a float step on it are ratios."""
    for name, shape, size, augment in (("mnist", MNIST, 100, None), ("cifar10, augmented", CIFAR, 128, Augmentation())):
        images, labels = torch.randint(256, (IMAGES, *shape), dtype=torch.uint8), torch.randint(10, (IMAGES,))
        statistics = ([0.5] * shape[0], [0.25] * shape[0])
        ours = ImageBatches(images, labels, size, *statistics, augment=augment, seed=0)
        each = OneByOne(images, labels, statistics, augment)
        theirs = itertools.chain.from_iterable(
            itertools.repeat(DataLoader(each, size, shuffle=True, drop_last=True, num_workers=0))
        )
        sides: dict[str, Any] = {"a batch": ours.__next__, "DataLoader": theirs.__next__}
        if name == "mnist":
            sides["step of lenet300"] = Float(*NETWORKS["lenet300"])
        yield f"{name}, batch {size}", ratios(in_turns(sides, options))


class OneByOne(Dataset):
    """The same images, cropped, mirrored and normalised the usual way."""

    def __init__(
        self, images: Tensor, labels: Tensor, statistics: tuple[list[float], list[float]], augment: Augmentation | None
    ) -> None:
        self.images, self.labels, self.statistics, self.augment = images, labels, statistics, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            _, h, w = image.shape
            pad = self.augment.pad
            top, left, mirrored = (int(torch.randint(n, ())) for n in (2 * pad + 1, 2 * pad + 1, 2))
            image = functional.pad(image, (pad,) * 4)[:, top : top + h, left : left + w]
            image = image.flip(2) if mirrored else image
        return normalise(image[None], *self.statistics)[0], self.labels[index]
