"""Digits: 1,797 real handwritten digits that come with scikit-learn; nothing to download."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from mrfquant.data.dataset import Dataset, DatasetInfo, Split
from mrfquant.data.registry import dataset

DIGITS = DatasetInfo(
    name="digits",
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
    mean=(0.3055,),
    std=(0.3247,),
    augment=False,
)
HELD_OUT = 300  # images of the validation split, and of the test split


@dataset
def digits(root: Path) -> Dataset:
    """The 8x8 digits enlarged to MNIST's 28x28; 1,197 train, 300 validation, 300 test, the same at every call.

    `root` is not used: the images are part of scikit-learn.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).float()[:, None] * (255 / 16)  # (1797, 1, 8, 8), from 0..16 to 0..255
    images = F.interpolate(pixels, size=DIGITS.shape[1:], mode="bilinear").round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()

    rest, test = train_test_split(range(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=0)
    train, val = train_test_split(rest, test_size=HELD_OUT, stratify=labels[rest], random_state=0)
    return DIGITS.dataset(*(Split(images[part], labels[part]) for part in (train, val, test)))
