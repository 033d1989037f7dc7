"""CIFAR-10 and CIFAR-100, from the official binary version: records of label bytes and 3,072 pixels, no pickle."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from mrfquant.config.settings import Whole
from mrfquant.data.base import dataset
from mrfquant.data.image_batches import Augmentation, Border
from mrfquant.data.images import DatasetInfo, Images, Split
from mrfquant.data.root import REPAIR, Download, fetch, read_checked
from mrfquant.errors import BadInput

CIFAR10 = DatasetInfo(
    name="cifar10",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    augment=Augmentation(),
)
_FINE_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = DatasetInfo(
    name="cifar100",
    shape=(3, 32, 32),
    classes=tuple(_FINE_CLASSES.split()),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    augment=Augmentation(),
)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALIDATION = 5_000  # the last of the training images
PIXELS = 3 * 32 * 32

FILES10 = {  # name: records, md5; the test file is the last
    "cifar-10-batches-bin/data_batch_1.bin": (10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    "cifar-10-batches-bin/data_batch_2.bin": (10_000, "5ea93a67294ea407fff1d09f752e9692"),
    "cifar-10-batches-bin/data_batch_3.bin": (10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    "cifar-10-batches-bin/data_batch_4.bin": (10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    "cifar-10-batches-bin/data_batch_5.bin": (10_000, "53f37980c15c3d472c316c40844f3f0d"),
    "cifar-10-batches-bin/test_batch.bin": (10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
}
# The archive of CIFAR-100 has a published md5, its files have none: their size and the range of the labels are checked.
FILES100 = {"cifar-100-binary/train.bin": (50_000, None), "cifar-100-binary/test.bin": (10_000, None)}
URL = "https://www.cs.toronto.edu/~kriz/"


@dataset
def cifar10(
    root: Path,
    statistics: Literal["cifar10", "imagenet"] = "cifar10",
    validation: Literal["train", "test"] = "train",
    pad: Whole = 4,
    border: Border = "zeros",
    cutout: Whole = 0,
) -> Images:
    """Read photographs, 32x32, 10 classes; the last 5,000 of the 50,000 training images validate.

    Args:
        statistics: the mean and deviation that images are normalised by; public networks take ImageNet's.
        validation: where its images come from. 'test' is for networks that were trained on all training images, which
            cannot judge them any more: all 50,000 train, the first half of the test images validates, the second half
            tests.
        pad: width of the border around training images that random crops take in, in pixels.
        border: what it shows: zeros, or the image reflected at its edge.
        cutout: side of a square at a random place of training images that is blanked, in pixels.
    """
    fetch(root, [Download(URL + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", tuple(FILES10))])
    info = replace(CIFAR10, augment=Augmentation(pad, border, cutout))
    if statistics == "imagenet":
        info = replace(info, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return _dataset(info, root, FILES10, label_ranges=[10], validation=validation)


@dataset
def cifar100(root: Path) -> Images:
    """Read photographs, 32x32, 100 fine classes; the last 5,000 of the 50,000 training images validate."""
    fetch(root, [Download(URL + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", tuple(FILES100))])
    return _dataset(CIFAR100, root, FILES100, label_ranges=[20, 100])


def _dataset(
    info: DatasetInfo,
    root: Path,
    files: Mapping[str, tuple[int, str | None]],
    label_ranges: list[int],
    validation: Literal["train", "test"] = "train",
) -> Images:
    splits = [_read(root / name, records, md5, label_ranges) for name, (records, md5) in files.items()]
    given = len(splits[-1].labels)
    held = (VALIDATION, given) if validation == "train" else (given - given // 2, given // 2)
    sizes = [sum(len(split.labels) for split in splits) - sum(held), *held]
    images = torch.cat([split.images for split in splits]).split(sizes)
    labels = torch.cat([split.labels for split in splits]).split(sizes)
    train, val, test = map(Split, images, labels)
    return info.dataset(train=train, val=val, test=test)


def _read(path: Path, records: int, md5: str | None, label_ranges: list[int]) -> Split:
    """Read the images of a file whose records hold one label byte for each of `label_ranges`; the last is the class."""
    leading = len(label_ranges)
    data = read_checked(path, records * (leading + PIXELS), md5).reshape(records, leading + PIXELS)
    labels, pixels = data[:, :leading], data[:, leading:]
    if (labels >= np.array(label_ranges)).any():
        raise BadInput(f"{path} holds labels beyond the {label_ranges[-1]} classes: {REPAIR}")
    images = torch.from_numpy(pixels.reshape(records, 3, 32, 32).copy())
    return Split(images, torch.from_numpy(labels[:, -1].astype(np.int64)))
