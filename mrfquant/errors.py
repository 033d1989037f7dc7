"""The two ways a command ends badly; anything else is a bug and shows its traceback."""

from __future__ import annotations

from typing import Any


class BadInput(ValueError):
    """What was given cannot be used. The message is one sentence for the user; exit status 2."""


class BadSetting(BadInput):
    """A parameter of a part has a value it cannot take; `binding` is its name as gin writes it."""

    def __init__(self, binding: str, value: Any, expected: str) -> None:
        super().__init__(f"{binding} = {value!r}, expected {expected}")
        self.binding = binding


class RunFailed(Exception):
    """The input was fine, the work could not be finished. One sentence for the user; exit status 1."""
