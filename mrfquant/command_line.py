"""What every command shares: its errors for people, and stopping politely."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType

from mrfquant.errors import BadInput, RunFailed


def guarded(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; bad input and failed runs become one sentence on standard error and an exit status."""
    try:
        return command(arguments)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"failed: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


class StopRequest:
    """Within the block, true once Ctrl-C or SIGTERM has asked to stop; asked again, the process stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> StopRequest:
        self._handlers = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def __call__(self) -> bool:
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
