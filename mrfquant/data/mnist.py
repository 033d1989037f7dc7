"""MNIST, from its four idx files."""

from pathlib import Path

import numpy as np
import torch

from mrfquant.data.base import dataset
from mrfquant.data.images import DatasetInfo, Images, Split
from mrfquant.data.root import REPAIR, Download, fetch, read_checked
from mrfquant.errors import BadInput

MNIST = DatasetInfo(
    name="mnist", shape=(1, 28, 28), classes=tuple("0123456789"), mean=(0.1307,), std=(0.3081,), augment=None
)
VALIDATION = 10_000  # the last of the training images

FOLDER = "MNIST/raw"
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = {  # name: size and md5 of the file, md5 of the compressed file that the mirror offers
    "train-images-idx3-ubyte": (47040016, "6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": (60008, "a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": (7840016, "2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": (10008, "27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
}


@dataset
def mnist(root: Path) -> Images:
    """Read handwritten digits, 28x28; the last 10,000 of the 60,000 training images validate, 10,000 test."""
    fetch(root, [_download(name) for name in FILES if _present(root, name) is None])
    images, labels, test_images, test_labels = (_read(root, name) for name in FILES)
    images, labels = images[:, None], labels.long()
    return MNIST.dataset(
        train=Split(images[:-VALIDATION], labels[:-VALIDATION]),
        val=Split(images[-VALIDATION:], labels[-VALIDATION:]),
        test=Split(test_images[:, None], test_labels.long()),
    )


def _present(root: Path, name: str) -> Path | None:
    """Return the file as it lies under the root, plain or compressed."""
    plain = root / FOLDER / name
    return next((path for path in (plain, plain.with_name(name + ".gz")) if path.exists()), None)


def _download(name: str) -> Download:
    return Download(f"{MIRROR}{name}.gz", FILES[name][2], provides=(f"{FOLDER}/{name}",), unpack_in=FOLDER)


def _read(root: Path, name: str) -> torch.Tensor:
    size, md5, _ = FILES[name]
    path = _present(root, name) or root / FOLDER / name
    try:
        return torch.from_numpy(parse_idx(read_checked(path, size, md5)))
    except (ValueError, IndexError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is no idx file of bytes ({error}): {REPAIR}") from None


def parse_idx(data: np.ndarray) -> np.ndarray:
    """Return the array of an idx file: two zeros, the type, the number of dimensions, each as >u4, and the values."""
    zeros, kind, dimensions = data[:2], int(data[2]), int(data[3])
    if zeros.any() or kind != 8:
        raise ValueError(f"its values are of type {kind}, expected 8 for bytes")
    header = 4 + 4 * dimensions
    return data[header:].reshape(data[4:header].view(">u4")).copy()
