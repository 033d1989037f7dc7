"""The two ways a command ends badly; anything else is a bug and shows its traceback."""

from __future__ import annotations

from typing import Any


class BadInput(ValueError):
    """A mistake in what was given. The message is one sentence for the user; the exit status is 2.

    `binding` is the setting it is about as gin writes it, 'Name.parameter' or the name of a part, if there is one.

    `binding` is what it is about as gin writes it, 'Name.parameter' or the name of a part, if it is about a setting.
    """

    def __init__(self, message: str, binding: str | None = None) -> None:
        super().__init__(message)
        self.binding = binding


class BadSetting(BadInput):
    """A parameter of a part has a value it cannot take."""

    def __init__(self, binding: str, value: Any, expected: str) -> None:
        named = getattr(value, "__name__", None)  # a class or a function, which gin calls @name
        text = f"@{named}" if named else repr(value)
        super().__init__(
            f"{binding} = {text if len(text) <= 200 else text[:197] + '...'}, expected {expected}", binding
        )


class RunFailed(Exception):
    """The input was fine, the work could not be finished. One sentence for the user; exit status 1."""


class Diverged(RunFailed):
    """Training led nowhere: its settings were no good, and it would end the same way again."""
