"""Text for people: tables, durations, and output that nobody reads any more."""

import contextlib
import os
import re
from collections.abc import Container, Sequence
from typing import TextIO


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> str:
    """Return rows of cells as text in columns; those numbered in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if i in right else "<" for i in range(len(widths))]
    lines = ("  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(row, sides, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the heads first, as a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| " + " | ".join(["---"] * len(rows[0])) + " |", *lines[1:]])


def duration(seconds: float) -> str:
    """Return seconds in words: 0.8 s, 42 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: str) -> str:
    """Return the text without characters that a terminal would obey or an encoder refuse."""
    return "".join(c if c.isprintable() else "?" for c in text)


def redacted(text: str) -> str:
    """Return the text without the passwords of the URLs in it."""
    text = re.sub(r"(://[^\s:/@]*):[^\s]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&]\w*(?:password|passwd|secret|token)\w*=)[^&\s]+", r"\1***", text)


def silence(stream: TextIO) -> None:
    """Let what is still written to a broken pipe go nowhere, what Python flushes at its end included."""
    with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):  # it may be no file at all
        os.dup2(nowhere.fileno(), stream.fileno())
