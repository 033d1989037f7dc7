"""The words of an untrusted file, taken one after the other; errors name their place."""

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mrfquant.errors import BadInput

CHUNK_BYTES = 2**20
MAX_BYTES = 2**30  # of a file: its words take ten times as much memory
PathLike = str | os.PathLike[str]


class Tokens:
    """The words of a file, of which the first may have to be one of some headers."""

    def __init__(self, path: PathLike, *headers: str) -> None:
        self.path, self.at = Path(path), 0
        try:
            with open(path, "rb") as file:
                data = self._read(file)
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror}; give a file of the UAI format") from None
        self.words = data.decode("ascii").split()
        if headers and (word := self.take(1, "the header")[0]) not in headers:
            raise self.bad(f"begins with {shown(word)}, expected {' or '.join(headers)}")

    def _read(self, file: BinaryIO) -> bytes:
        """Read a file chunk by chunk: it may be a device without an end, or not a text."""
        pieces, size = [], 0
        while piece := file.read(CHUNK_BYTES):
            odd = re.search(rb"[^A-Za-z0-9+.\s-]", piece)  # also "_", which Python's numbers may have
            if odd:
                place = size + odd.start()
                raise self.bad(f"has the byte {odd[0]!r} at {place}, expected a text of words and numbers only")
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise self.bad(f"has more than {MAX_BYTES:,} bytes")
        return b"".join(pieces)

    @property
    def left(self) -> int:
        """Number of words not taken yet."""
        return max(0, len(self.words) - self.at)

    def bad(self, what: str) -> BadInput:
        """Return an error that names the file."""
        return BadInput(f"{self.path} {what}")

    def take(self, count: int, what: str) -> list[str]:
        """Take the next words."""
        if count > self.left:
            raise self.bad(f"ends early: {what} should follow (words expected: {count}, left: {self.left})")
        self.at += count
        return self.words[self.at - count : self.at]

    def count(self, what: str, things: str, words_each: int) -> int:
        """Take the number of things, each of which needs so many of the words that follow, or more."""
        count = self.whole(what)
        if words_each * count > self.left:
            needed = f"(words expected: at least {words_each * count}, left: {self.left})"
            raise self.bad(f"ends early: {count} {things} should follow {needed}")
        return count

    def whole(self, what: str) -> int:
        """Take the next word as a whole number of at least 0."""
        value = parsed(int, self.words[self.at], -1) if self.left else -1
        if not 0 <= value < 2**63:
            return self.wholes(1, what)[0]  # raises an error
        self.at += 1
        return value

    def wholes(self, count: int, what: str) -> list[int]:
        """Take the next words as whole numbers of at least 0."""
        words = self.take(count, what)
        values = [parsed(int, word, -1) for word in words]
        if values and (min(values) < 0 or max(values) >= 2**63):
            wrong = next(i for i, value in enumerate(values) if not 0 <= value < 2**63)
            raise self._wrong(wrong - count, what, "a whole number of at least 0 and below 2^63")
        return values

    def numbers(self, count: int, what: str) -> np.ndarray:
        """Take the next words as numbers."""
        words = self.take(count, what)
        try:
            return np.fromiter(map(float, words), np.float64, count)
        except ValueError:
            wrong = next(i for i, word in enumerate(words) if parsed(float, word, None) is None)
            raise self._wrong(wrong - count, what, "a number") from None

    def _wrong(self, back: int, what: str, expected: str) -> BadInput:
        """Return an error about a word, given by its place relative to the present one."""
        place = self.at + back
        return self.bad(f"has {shown(self.words[place])} in {what} (word {place + 1}), expected {expected}")

    def end(self) -> None:
        """Raise an error if any words are left."""
        if self.left:
            first = shown(self.words[self.at])
            raise self.bad(f"has {first} where its end was expected (words left: {self.left})")


def parsed(kind: type, word: str, otherwise: Any) -> Any:
    """Parse a word as a number of that kind; return `otherwise` if it is none."""
    try:
        return kind(word)
    except ValueError:
        return otherwise


def shown(word: str) -> str:
    """Return a word for a message, shortened if it is long."""
    return repr(word if len(word) <= 40 else word[:37] + "...")
