"""Texts to learn the next character of: one that comes with the package, a known one, and files of your own.

alice.txt.gz holds "Alice's Adventures in Wonderland" by Lewis Carroll, 1865, which is in the public domain.
"""

import gzip
from pathlib import Path

from mrfquant.compute import free_memory
from mrfquant.config.settings import Count
from mrfquant.data.base import CPU, dataset
from mrfquant.data.root import Download, fetch, read_checked
from mrfquant.data.tokens import Tokens, byte_tokens, characters
from mrfquant.errors import BadInput
from mrfquant.storage.files import read_bytes

ALICE = Path(__file__).with_name("alice.txt.gz")
SHAKESPEARE = "tinyshakespeare.txt"
SHAKESPEARE_BYTES, SHAKESPEARE_MD5 = 1_115_394, "6fb458f1232090904fb40fe944165e91"
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataset
def alice(root: Path | None = None, context: Count = 128) -> Tokens:
    """Read Alice's Adventures in Wonderland, 146,000 characters in the package; `root` is not used."""
    return characters("alice", _alice(), context)


@dataset
def shakespeare(root: Path, context: Count = 128) -> Tokens:
    """Read Tiny Shakespeare: a million characters of his plays, 65 different ones."""
    fetch(root, [Download(SHAKESPEARE_URL, SHAKESPEARE_MD5, (SHAKESPEARE,), archive=False)])
    data = read_checked(root / SHAKESPEARE, SHAKESPEARE_BYTES, SHAKESPEARE_MD5)
    return characters("shakespeare", data.tobytes().decode("ascii"), context, SHAKESPEARE_CHARACTERS)


def shakespeare_stand_in(context: Count = 128) -> Tokens:
    """Read Alice in the characters of Shakespeare's plays, to try a configuration without the file."""
    text = "".join(c for c in _alice() if c in SHAKESPEARE_CHARACTERS)
    return characters("shakespeare", text, context, SHAKESPEARE_CHARACTERS, stand_in=True)


@dataset
def text_file(root: Path, file: str, context: Count = 128) -> Tokens:
    """Read the characters of a UTF-8 file, given by its path or by its name under the data root."""
    path = _found(root, file)
    try:
        return characters(path.stem, _read(path).decode().replace("\r\n", "\n").replace("\r", "\n"), context)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no UTF-8 text: read it as bytes, with @byte_file", "text_file.file") from None


@dataset
def byte_file(root: Path, file: str, context: Count = 128) -> Tokens:
    """Read the bytes of any file, given by its path or by its name under the data root."""
    path = _found(root, file)
    return byte_tokens(path.stem, _read(path), context)


def _found(root: Path, file: str) -> Path:
    found = next((path for path in (Path(file), root / file) if path.is_file()), None)
    if found is None:
        raise BadInput(f"there is no file {file}, here or in {root}: give its path")
    return found


def _read(path: Path) -> bytes:
    """Return the bytes of a text that fits into the memory that is free, as it is and as numbers."""
    try:
        return read_bytes(path, free_memory(CPU) // 16)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give another file, or a part of it") from None


def _alice() -> str:
    return gzip.decompress(ALICE.read_bytes()).decode("ascii")
