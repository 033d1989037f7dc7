"""Files that are whole or absent: written beside their place, synced, then renamed; and read with bounds.

What lies in a folder may come from strangers: names beside a file cannot be guessed, links are not followed where that
could destroy something, and what is read is an ordinary file of bounded size.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_TEXT = 2**30  # bytes of a text that is read in one piece
LEFTOVER = re.compile(r"\..+\.\w+\.tmp")  # temporary files that a killed process leaves


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for writing in binary; it appears under its name only when the block succeeds.

    A crash or a full disk leaves the former content of `path`, or nothing, and never a part of the new one. A link is
    followed; into a pipe or a device, which cannot be replaced, it is written straight.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(path, "wb") as file:
            yield file
        return
    path = path.resolve() if path.is_symlink() else path
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:  # never one that is there, nor through a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic(path) as file:
        file.write(text.encode())


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_bytes(path: str | os.PathLike[str], most: int = MOST_TEXT) -> bytes:
    """Read an ordinary file of at most `most` bytes; raise OSError for anything else, such as a pipe or a device."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe without a writer would wait
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read(status.st_size)  # no more: some of the system's own files never end


def read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """Return the text of an ordinary file, UTF-8, with the bounds of `read_bytes`."""
    return read_bytes(path).decode(errors=errors)


def leftovers(folder: Path) -> list[Path]:
    """Return what processes that were killed while they wrote have left in a folder."""
    return [path for path in folder.glob(".*.tmp") if LEFTOVER.fullmatch(path.name)]


def clean(folder: Path) -> None:
    """Delete the leftovers of a folder in which nobody else writes now."""
    for path in leftovers(folder):
        with suppress(OSError):
            path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can sync folders (POSIX)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
