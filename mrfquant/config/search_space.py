"""Search spaces: which settings a sweep varies, a line each, in the manner of a gin binding.

# comments and empty lines are fine
Geometric.rho = uniform(1.01, 1.2)
Adam.lr = loguniform(1e-4, 1e-2)
Trainer.batch_size = choice(50, 100, 200)
ProximalMeanField.jacobian = choice('exact', 'reference', 0.25)
Geometric.interval = integer(50, 200)
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrfquant.errors import BadInput

MAX_BYTES = 2**20  # bytes of a file
KINDS = ("uniform", "loguniform", "integer", "choice")


@dataclass(frozen=True)
class Dimension:
    """A setting and the values that it may take."""

    binding: str
    kind: str
    values: tuple[Any, ...]

    def suggest(self, trial: Any) -> Any:
        """Return the value that an Optuna trial proposes."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.binding, self.values)
        suggest: Callable[..., Any] = trial.suggest_int if self.kind == "integer" else trial.suggest_float
        return suggest(self.binding, *self.values, **({"log": True} if self.kind == "loguniform" else {}))


def read_space(path: Path) -> list[Dimension]:
    """Return the dimensions in a space file."""
    if not path.is_file():
        raise BadInput(f"there is no space file {path}: write one, as gin/spaces/pmf.space is written")
    dimensions = []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(
                f"the space file {path} has more than {MAX_BYTES:,} bytes: keep the lines that vary something"
            )
        with open(path, encoding="utf-8") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"the space file {path} cannot be read as text") from None
    for number, line in enumerate(lines, start=1):
        if line.split("#")[0].strip():
            dimensions.append(_dimension(line, f"{path}:{number}"))
    names = [dimension.binding for dimension in dimensions]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise BadInput(f"{path} varies {twice[0]} twice: keep one of the lines")
    if not dimensions:
        raise BadInput(f"{path} varies nothing: add lines such as Adam.lr = loguniform(1e-4, 1e-2)")
    return dimensions


def _dimension(line: str, place: str) -> Dimension:
    """Read one line; its right side consists of literals and is never executed."""
    try:
        (statement,) = ast.parse(line.strip()).body
        assert isinstance(statement, ast.Assign)
        (target,), call = statement.targets, statement.value
        assert isinstance(target, ast.Attribute)
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        assert call.func.id in KINDS
        assert not call.keywords
        values = tuple(ast.literal_eval(value) for value in call.args)
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):  # of 5,000 brackets
        form = f"Name.parameter = KIND(values), with KIND one of {', '.join(KINDS)}"
        raise BadInput(f"{place}: {line.strip()[:100]!r} is not of the form {form}") from None
    kind = call.func.id
    if kind == "choice":
        valid = len(values) > 1
    else:
        number = int if kind == "integer" else (int, float)
        valid = (
            len(values) == 2 and all(isinstance(v, number) and abs(v) < 1e300 for v in values) and values[0] < values[1]
        )
        valid = valid and (kind != "loguniform" or values[0] > 0)
    if not valid:
        raise BadInput(f"{place}: {kind}{values} needs {'two or more values' if kind == 'choice' else 'low < high'}")
    return Dimension(ast.unparse(target), kind, values)
