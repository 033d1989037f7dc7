"""The folder of the data sets: where it is, how missing files get there, and whether a file is what it should be."""

import gzip
import hashlib
import os
import socket
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np

from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput

TIMEOUT = 30.0  # seconds that a server may stay silent
REPAIR = "delete it so that it is downloaded again, or put the right file there"


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder of the data sets: `given`, else the variable MRFQUANT_DATA, else ~/.cache/mrfquant/data."""
    path = Path(given or os.environ.get("MRFQUANT_DATA") or "~/.cache/mrfquant/data")
    try:
        return path.expanduser()
    except RuntimeError:
        raise BadInput(
            f"the data root {path} is in a home folder that is not known: give another one by --data"
        ) from None


@dataclass(frozen=True)
class Download:
    """An archive, or a plain file, on the net, and the files or the folder that it provides, relative to the root."""

    url: str
    md5: str
    provides: tuple[str, ...]
    unpack_in: str = "."
    archive: bool = True


def fetch(root: Path, downloads: Sequence[Download]) -> None:
    """Download what is missing under `root`; every file appears there whole or not at all."""
    missing = {download: [path for path in download.provides if not (root / path).exists()] for download in downloads}
    missing = {download: paths for download, paths in missing.items() if paths}
    if not missing:
        return
    utils = import_torchvision().datasets.utils
    try:
        root.mkdir(parents=True, exist_ok=True)
        for download, paths in missing.items():
            with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as temporary, _timeout(TIMEOUT):
                unpacked = Path(temporary, "unpacked")
                folder = unpacked / download.unpack_in
                folder.mkdir(parents=True)
                if download.archive:
                    utils.download_and_extract_archive(download.url, temporary, folder, md5=download.md5)
                else:
                    utils.download_url(download.url, folder, Path(paths[0]).name, md5=download.md5)
                for path in paths:
                    _move(unpacked / path, root / path)
    except (OSError, RuntimeError, HTTPException) as error:  # URLError is an OSError; a wrong md5 a RuntimeError
        wanted = ", ".join(path for paths in missing.values() for path in paths)
        urls = ", ".join(download.url for download in missing)
        raise BadInput(
            f"{root} lacks {wanted}, and the download from {urls} failed ({error}):"
            " put the files there by hand, or begin with gin/ref_lenet300_digits.gin, which needs no files"
        ) from error


def read_checked(path: Path, size: int, md5: str | None = None) -> np.ndarray:
    """Return the bytes of a file, unzipped if it is a .gz, as uint8 (size,); refuse another size or md5."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no ordinary file")
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read(size + 1)  # no more, however much it would expand to
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}): {REPAIR}") from error
    if len(data) != size:
        held = f"more than {size}" if len(data) > size else len(data)
        raise BadInput(f"{path} holds {held} bytes instead of {size}: {REPAIR}")
    if md5 is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
        raise BadInput(f"{path} has been altered, its md5 is not {md5}: {REPAIR}")
    return np.frombuffer(data, np.uint8)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, target)
    except OSError:
        if not target.exists():  # a folder is there already if another process was faster, which is as good
            raise


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Give connections that torchvision opens within the block a time limit, which it does not."""
    former = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(former)
