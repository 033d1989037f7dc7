"""Digits: 1,797 real handwritten digits that come with the package; nothing to download.

digits.npz holds the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, 1998, from
the UCI Machine Learning Repository (https://doi.org/10.24432/C50P49), under the licence CC BY 4.0
(https://creativecommons.org/licenses/by/4.0): every image and label as it was, in the order that scikit-learn has
them, and beside them which images make which split.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from mrfquant.data.base import dataset
from mrfquant.data.images import DatasetInfo, Images, Split

DIGITS = DatasetInfo(
    name="digits", shape=(1, 28, 28), classes=tuple("0123456789"), mean=(0.3055,), std=(0.3247,), augment=None
)
FILE = Path(__file__).with_name("digits.npz")


@dataset
def digits(root: Path | None = None) -> Images:
    """Return the 8x8 digits enlarged to MNIST's 28x28: 1,197 train, 300 validation, 300 test, always the same.

    `root` is not used: the images are part of the package.
    """
    with np.load(FILE, allow_pickle=False) as file:
        stored = {name: torch.from_numpy(file[name]) for name in ("images", "labels", "train", "val", "test")}
    pixels = stored["images"].float()[:, None] * (255 / 16)  # (1797, 1, 8, 8), from 0..16 to 0..255
    images = F.interpolate(pixels, size=DIGITS.shape[1:], mode="bilinear").round().to(torch.uint8)
    labels = stored["labels"].long()
    parts = (stored[name].long() for name in ("train", "val", "test"))
    train, val, test = (Split(images[part], labels[part]) for part in parts)
    return DIGITS.dataset(train, val, test)
