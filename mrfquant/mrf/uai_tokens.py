"""The words of a file that is not trusted, taken one after the other; every mistake is told with its place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mrfquant.errors import BadInput

PIECE = 2**20  # bytes
MOST_BYTES = 2**30  # of a file: its words take ten times as much memory
PathLike = str | os.PathLike[str]


class Tokens:
    """The words of a file, taken one after the other."""

    def __init__(self, path: PathLike) -> None:
        self.path, self.at = Path(path), 0
        try:
            with open(path, "rb") as file:
                data = self._read(file)
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror}; give a file of the UAI format") from None
        self.words = data.decode("ascii").split()

    def _read(self, file: BinaryIO) -> bytes:
        """All of a file, piece by piece: it may be a device without an end, or something else than a text."""
        pieces, size = [], 0
        while piece := file.read(PIECE):
            odd = re.search(rb"[^A-Za-z0-9+.\s-]", piece)  # also "_", which Python's numbers may have
            if odd:
                place = size + odd.start()
                raise self.bad(f"has the byte {odd[0]!r} at {place}, expected a text of words and numbers only")
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise self.bad(f"has more than {MOST_BYTES:,} bytes")
        return b"".join(pieces)

    @property
    def left(self) -> int:
        """How many are still to be taken."""
        return max(0, len(self.words) - self.at)

    def bad(self, what: str) -> BadInput:
        """The error to raise: the file, and what is wrong with it."""
        return BadInput(f"{self.path} {what}")

    def take(self, count: int, what: str) -> list[str]:
        """The next words."""
        if count > self.left:
            raise self.bad(f"ends early: {what} should follow (words expected: {count}, left: {self.left})")
        self.at += count
        return self.words[self.at - count : self.at]

    def header(self, *known: str) -> None:
        """Take the first word, which says what the file is."""
        (word,) = self.take(1, "the header")
        if word not in known:
            raise self.bad(f"begins with {shown(word)}, expected {' or '.join(known)}")

    def whole(self, what: str) -> int:
        """The next word as a whole number of at least 0."""
        value = parsed(int, self.words[self.at], -1) if self.left else -1
        if not 0 <= value < 2**63:
            return self.wholes(1, what)[0]  # says what is wrong
        self.at += 1
        return value

    def wholes(self, count: int, what: str) -> list[int]:
        """The next words as whole numbers of at least 0."""
        words = self.take(count, what)
        values = [parsed(int, word, -1) for word in words]
        if values and (min(values) < 0 or max(values) >= 2**63):
            wrong = next(i for i, value in enumerate(values) if not 0 <= value < 2**63)
            raise self.wrong(wrong - count, what, "a whole number of at least 0 and below 2^63")
        return values

    def numbers(self, count: int, what: str) -> np.ndarray:
        """The next words as numbers, whatever their values."""
        words = self.take(count, what)
        try:
            return np.fromiter(map(float, words), np.float64, count)
        except ValueError:
            wrong = next(i for i, word in enumerate(words) if parsed(float, word, None) is None)
            raise self.wrong(wrong - count, what, "a number") from None

    def wrong(self, back: int, what: str, expected: str) -> BadInput:
        """The error to raise for a word, given by its place seen from here."""
        place = self.at + back
        return self.bad(f"has {shown(self.words[place])} in {what} (word {place + 1}), expected {expected}")

    def end(self) -> None:
        """Refuse to leave anything unread."""
        if self.left:
            first = shown(self.words[self.at])
            raise self.bad(f"has {first} where its end was expected (words left: {self.left})")


def parsed(kind: type, word: str, otherwise: Any) -> Any:
    """A word as a number of that kind, or what to take where it is none."""
    try:
        return kind(word)
    except ValueError:
        return otherwise


def shown(word: str) -> str:
    """A word for a message: what is not a word of this format may be long."""
    return repr(word if len(word) <= 40 else word[:37] + "...")
