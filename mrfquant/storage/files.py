"""Files that are whole or absent: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
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


def write_json(path: str | os.PathLike[str], value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write `value` as indented JSON to `path` atomically."""
    write_text(path, json.dumps(value, indent=2, default=default) + "\n")


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
