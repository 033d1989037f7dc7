"""TinyImageNet: 110,000 JPEG files, decoded once and kept as one uncompressed .npz beside their folder."""

import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from mrfquant.data.base import dataset
from mrfquant.data.image_batches import Augmentation
from mrfquant.data.images import DatasetInfo, Images, Split
from mrfquant.data.root import Download, fetch
from mrfquant.errors import BadInput
from mrfquant.storage.files import atomic

TINYIMAGENET = DatasetInfo(
    name="tinyimagenet",
    shape=(3, 64, 64),
    classes=tuple(f"class {label}" for label in range(200)),  # the names are in the files
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2770, 0.2691, 0.2821),
    augment=Augmentation(),
)
COUNTS = {"train": 100_000, "val": 10_000}  # images of the complete data set
FOLDER = "tiny-imagenet-200"
DOWNLOAD = Download(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", provides=(FOLDER,)
)
REPAIR = f"put the right file there, or delete the folder {FOLDER} so that it is downloaded again"


@dataset
def tinyimagenet(root: Path) -> Images:
    """Read photographs, 64x64, 200 classes; 100,000 train.

    The 10,000 validation images are the test images as well, since the labels of the official test images are not
    public.
    """
    cache = root / f"{FOLDER}.npz"
    arrays = _read_cache(cache)
    if arrays is None:
        fetch(root, [DOWNLOAD])
        arrays = _decode_folder(root / FOLDER)
        named: dict[str, Any] = arrays
        try:
            with atomic(cache) as file:
                np.savez(file, **named)
        except OSError as error:  # a folder shared for reading, a full disk
            warnings.warn(f"{cache} cannot be written ({error}): the images are decoded at every start", stacklevel=2)
    train, val = (
        Split(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])) for part in COUNTS
    )
    return replace(TINYIMAGENET, classes=tuple(arrays["classes"].tolist())).dataset(train, val, test=val)


def _read_cache(path: Path) -> dict[str, np.ndarray] | None:
    """Return the decoded images, or None if they have to be decoded (again): no file, or one that is not whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return None  # not ours: it might expand without bounds
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)  # reading a member checks its CRC
            complete = all(
                arrays[f"{part}_images"].shape == (count, *TINYIMAGENET.shape)
                and arrays[f"{part}_labels"].shape == (count,)
                for part, count in COUNTS.items()
            )
            return arrays if complete and "classes" in arrays else None
    except Exception:  # what a damaged file raises is not documented, and it can be made again
        return None


def _decode_folder(folder: Path) -> dict[str, np.ndarray]:
    """Write `{train,val}_{images,labels}` and the classes' names; labels follow the order of wnids.txt."""
    wnids = _lines(folder / "wnids.txt")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    name_of = _columns(folder / "words.txt")

    files: dict[str, list[Path]] = {"train": [], "val": []}
    labels: dict[str, list[int]] = {"train": [], "val": []}
    for label, wnid in enumerate(wnids):
        paths = sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
        files["train"] += paths
        labels["train"] += [label] * len(paths)

    annotations = folder / "val" / "val_annotations.txt"
    wnid_of = _columns(annotations)
    for path in sorted((folder / "val" / "images").glob("*.JPEG")):
        if wnid_of.get(path.name) not in label_of:
            raise BadInput(f"{annotations} gives no class of wnids.txt for {path.name}: {REPAIR}")
        files["val"].append(path)
        labels["val"].append(label_of[wnid_of[path.name]])

    arrays = {"classes": np.array([name_of.get(wnid, wnid) for wnid in wnids])}
    for part, count in COUNTS.items():
        if len(files[part]) != count:
            raise BadInput(
                f"{folder / part} holds {len(files[part])} images instead of {count}:"
                f" delete the folder {FOLDER} so that it is downloaded again"
            )
        arrays[f"{part}_images"] = _decode(files[part], f"Decoding {FOLDER}/{part}")
        arrays[f"{part}_labels"] = np.array(labels[part], dtype=np.int64)
    return arrays


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}): {REPAIR}") from error


def _columns(path: Path) -> dict[str, str]:
    """Return the second column of a table with tabs, by the first."""
    return {first: second for first, second, *_ in ([*line.split("\t"), ""] for line in _lines(path))}


def _decode(paths: Sequence[Path], title: str) -> np.ndarray:
    """Return the images of JPEG files as uint8, (n, c, h, w)."""
    images = np.empty((len(paths), *TINYIMAGENET.shape), np.uint8)
    with ThreadPool() as pool:  # threads suffice: Pillow decodes without the interpreter's lock
        decoded = pool.imap(_decode_one, paths, chunksize=64)
        for index, image in enumerate(tqdm(decoded, title, total=len(paths), unit="image")):
            images[index] = image
    return images


def _decode_one(path: Path) -> np.ndarray:
    try:
        with Image.open(path, formats=["JPEG"]) as image:
            if image.size != (64, 64):  # before it is decoded, however large it is
                raise BadInput(f"{path} has {image.size[0]}x{image.size[1]} pixels instead of 64x64: {REPAIR}")
            pixels = np.asarray(image.convert("RGB"))  # some are grey
    except BadInput:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path} is not a readable JPEG ({error}): {REPAIR}") from error
    return pixels.transpose(2, 0, 1)
