"""Files of the UAI inference competitions: models, evidence, queries, and the results MAR, MAP, MMAP and PR.

The format is a sequence of words; line breaks mean nothing. Files are not trusted: counts are compared with the number
of words before anything of that size is allocated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mrfquant.errors import BadInput
from mrfquant.mrf.contradiction import Contradiction
from mrfquant.mrf.uai_tokens import PathLike, Tokens, shown
from mrfquant.storage.files import write_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mrfquant.mrf.factor_graph import FactorGraph

Parsed = TypeVar("Parsed")

MAX_LOG = 700.0  # exp of it, and of its negative, is a normal float64
MAX_CONSTANTS = 10**6  # constant factors in a file that is written
MAX_ARITY = 60  # variables of a factor: tensors have at most 64 axes
MAX_TOTAL_LABELS, LABELS_PER_WORD = 2**22, 64  # of all variables: so many, or so many for each word of the file
MAX_LABELS = 2**16  # of a variable; more in a file that is long enough to have a table of them


@dataclass(frozen=True)
class Model:
    """The content of a model's file, before torch is needed: factors by shape, with the logarithms of their values."""

    path: PathLike
    cardinalities: np.ndarray
    groups: list[tuple[np.ndarray, np.ndarray]]  # scopes (F, k) and tables (c_1, ..., c_k, F)
    constant: float

    def graph(self, dtype: torch.dtype | None = None) -> FactorGraph:
        """Return the factor graph, by default in float64."""
        import torch

        from mrfquant.mrf.factor_graph import FactorGraph

        groups = [(torch.from_numpy(scopes), torch.from_numpy(tables)) for scopes, tables in self.groups]
        cards = torch.from_numpy(self.cardinalities)
        try:
            return FactorGraph(cards, groups=groups, constant=self.constant, dtype=dtype or torch.float64)
        except Contradiction as error:
            raise Contradiction(f"{self.path}: {error}") from None


def read_model(path: PathLike, dtype: torch.dtype | None = None) -> FactorGraph:
    """Read the factor graph of a MARKOV or BAYES file, whose conditional probabilities are factors like any others."""
    return read_arrays(path).graph(dtype)


def read_arrays(path: PathLike) -> Model:
    """Read a MARKOV or BAYES file into arrays."""
    words = Tokens(path, "MARKOV", "BAYES")
    cardinalities = _cardinalities(words)
    scopes = _scopes(words, len(cardinalities))
    logs, starts = _logs(words, _sizes(words, scopes, cardinalities))
    groups, constant = [], 0.0
    for numbers, scope in scopes:
        if scope.shape[1] == 0:
            constant = math.fsum(logs[starts[numbers]])
            continue
        shapes, which, count = np.unique(cardinalities[scope], axis=0, return_inverse=True, return_counts=True)
        by_shape = np.split(which.reshape(-1).argsort(kind="stable"), count.cumsum()[:-1])
        for shape, same in zip(shapes.tolist(), by_shape, strict=True):
            entries = np.arange(math.prod(shape))[:, None] + starts[numbers[same]]
            groups.append((scope[same], logs[entries].reshape(*shape, len(same))))
    return Model(words.path, cardinalities, groups, constant)


def read_evidence(path: PathLike) -> dict[int, int]:
    """Read the labels of observed variables; an empty file has none.

    The number of observations and the pairs may follow a 1, the number of samples, as in older files.
    """
    words = Tokens(path)
    return _with_or_without_samples(words, _evidence) if words.left else {}


def write_model(path: PathLike, graph: FactorGraph) -> None:
    """Write a graph as a MARKOV file.

    A table whose potentials overflow a float64 is divided by a constant; the product of these constants and the graph's
    own is written as constant factors, so no energy changes.
    """
    import torch

    scopes, tables, constant = [], [], graph.constant
    for group in graph.groups:
        logs = group.tables.detach().to("cpu", torch.float64).reshape(-1, len(group))
        shift = _shift(path, logs, group.scopes)
        constant += shift.sum().item()
        scopes += group.scopes.tolist()
        tables += (logs - shift).exp().t().tolist()
    constants = _constants(path, constant)
    scopes += [[]] * len(constants)
    tables += constants
    lines = ["MARKOV", str(len(graph)), _line(graph.cardinalities.tolist()), str(len(scopes))]
    lines += [_line([len(scope), *scope]) for scope in scopes]
    lines += [f"\n{len(table)}\n{_line(table)}" for table in tables]
    _write(path, lines)


def write_mar(path: PathLike, rows: Sequence[Sequence[float]]) -> None:
    """Write the marginals of every variable, a row for each."""
    for v, row in enumerate(rows):
        if not len(row) or not all(0 <= p < math.inf for p in row):
            raise BadInput(f"cannot write {path}: the marginals of variable {v} are not numbers of at least 0")
    _write(path, ["MAR", " ".join([str(len(rows)), *(f"{len(row)} {_line(map(float, row))}" for row in rows)])])


def write_map(path: PathLike, labels: Sequence[int]) -> None:
    """Write a labelling."""
    if any(label < 0 for label in labels):
        raise BadInput(f"cannot write {path}: a label is {min(labels)}, expected at least 0")
    _write(path, ["MAP", _line([len(labels), *map(int, labels)])])


def write_mmap(path: PathLike, labels: Mapping[int, int]) -> None:
    """Write the labels of the variables of a marginal MAP query."""
    _write(path, ["MMAP", _line([len(labels), *(x for pair in labels.items() for x in pair)])])


def write_pr(path: PathLike, log_z: float) -> None:
    """Write the partition function, given by its natural logarithm; the file holds the decimal one."""
    if math.isnan(log_z) or log_z == math.inf:
        raise BadInput(f"cannot write {path}: log Z is {log_z}, expected a finite number or -inf")
    _write(path, ["PR", repr(float(log_z) / math.log(10))])


def read_query(path: PathLike) -> list[int]:
    """Read the variables of a marginal MAP query: their number, then each."""
    words = Tokens(path)
    variables = words.wholes(words.whole("the number of query variables"), "the query variables")
    words.end()
    return variables


def read_mar(path: PathLike) -> list[list[float]]:
    """Read the marginals of every variable."""
    return _with_or_without_samples(Tokens(path, "MAR"), _rows)


def read_map(path: PathLike) -> list[int]:
    """Read the labelling of a MAP file, whose header may be the older MPE."""
    return _with_or_without_samples(Tokens(path, "MAP", "MPE"), _labels)


def read_pr(path: PathLike) -> float:
    """Read the natural logarithm of the partition function, as `write_pr` takes it."""
    return _with_or_without_samples(Tokens(path, "PR"), _log_z)


def _cardinalities(words: Tokens) -> np.ndarray:
    count = words.whole("the number of variables")
    cardinalities = np.array(words.wholes(count, "the cardinalities"), dtype=np.int64)
    most = max(MAX_LABELS, len(words.words))
    wrong = np.flatnonzero((cardinalities < 1) | (cardinalities > most))
    if len(wrong):
        raise words.bad(f"gives variable {wrong[0]} {cardinalities[wrong[0]]} labels, expected 1 to {most}")
    total, room = int(cardinalities.sum()), max(MAX_TOTAL_LABELS, LABELS_PER_WORD * len(words.words))
    if total > room:  # solvers store numbers for each
        raise words.bad(f"gives its variables {total:,} labels in all, expected at most {room:,} for its size")
    return cardinalities


def _scopes(words: Tokens, variables: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each arity k the numbers (F,) of its factors and their scopes (F, k)."""
    count = words.count("the number of factors", "factors", 3)  # an arity, a number of entries and an entry for each
    begun, places = words.at, []
    for f in range(count):  # arity after arity, passing over the variables
        places.append(words.at - begun)
        arity = words.whole(f"the number of variables of factor {f}")
        words.at += arity
    length, words.at = words.at - begun, begun
    listed = np.array(words.wholes(length, "the scopes"), dtype=np.int64)
    place = np.array(places, dtype=np.int64)
    scopes = []
    for arity in np.unique(listed[place]).tolist():
        numbers = np.flatnonzero(listed[place] == arity)
        if arity > MAX_ARITY:
            raise words.bad(f"gives factor {numbers[0]} {arity} variables, expected at most {MAX_ARITY}")
        scope = listed[place[numbers][:, None] + 1 + np.arange(arity)]
        _check_scopes(words, numbers, scope, variables)
        scopes.append((numbers, scope))
    return scopes


def _check_scopes(words: Tokens, numbers: np.ndarray, scope: np.ndarray, variables: int) -> None:
    """Refuse variables that do not exist or are twice in a factor."""
    outside, ordered = (scope >= variables).any(1), np.sort(scope, 1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    for wrong, expected in ((outside, f"numbers below {variables}"), (twice, "each once")):
        if wrong.any():
            first = wrong.argmax()
            raise words.bad(f"has factor {numbers[first]} over variables {scope[first].tolist()}, expected {expected}")


def _sizes(words: Tokens, scopes: list[tuple[np.ndarray, np.ndarray]], cardinalities: np.ndarray) -> np.ndarray:
    """Return the number of entries of each factor."""
    sizes = np.zeros(sum(len(numbers) for numbers, _ in scopes))
    with np.errstate(over="ignore"):  # inf rather than a wrong whole number
        for numbers, scope in scopes:
            sizes[numbers] = cardinalities[scope].prod(1, dtype=np.float64)
    if (sizes > words.left).any():
        f, left = int((sizes > words.left).argmax()), f"(words left: {words.left})"
        raise words.bad(f"ends early: the table of factor {f} has {sizes[f]:.15g} entries by its scope {left}")
    return sizes.astype(np.int64)


def _logs(words: Tokens, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the numbers that follow the scopes, and where the entries of each table start there.

    Refuses tables whose size does not fit their scope, and too few or too many words.
    """
    used = words.words[words.at :]
    starts = np.cumsum(size + 1) - size  # the number of entries stands before them
    numbers = words.numbers(words.left, "the tables")
    given = numbers[starts[starts <= len(numbers)] - 1]
    wrong = np.flatnonzero(given != size[: len(given)])
    if len(wrong):
        f = wrong[0]
        word = shown(used[starts[f] - 1])
        raise words.bad(f"has {word} for the number of entries of factor {f}, expected {size[f]} by its scope")
    missing = int((size + 1).sum()) - len(numbers)
    if missing > 0:
        f = np.searchsorted(starts + size, len(numbers), side="right")
        raise words.bad(f"ends early: the table of factor {f} is not whole (words missing: {missing})")
    words.at += missing  # back to the first that is too many
    words.end()
    _check_potentials(words, used, numbers, starts)
    with np.errstate(divide="ignore"):
        return np.log(numbers), starts


def _check_potentials(words: Tokens, used: list[str], numbers: np.ndarray, starts: np.ndarray) -> None:
    """Refuse potentials that are negative, infinite, or too small for a float64."""
    wrong = np.flatnonzero(~((numbers >= 0) & (numbers < math.inf)))
    expected = "a finite number of at least 0"
    if not len(wrong):
        wrong = np.array([i for i in np.flatnonzero(numbers == 0) if re.match("[^eE]*[1-9]", used[i])], int)
        expected = "0 or a number that a float64 can hold"
    if len(wrong):
        f = np.searchsorted(starts, wrong[0], side="right") - 1
        raise words.bad(f"has the potential {shown(used[wrong[0]])} in factor {f}, expected {expected}")


def _shift(path: PathLike, logs: Tensor, scopes: Tensor) -> Tensor:
    """Return what to subtract from each table of logarithms (entries, F) before exp: 0 if exp does not overflow."""
    import torch

    top = logs.amax(0)
    bottom = logs.where(~logs.isneginf(), top).amin(0)
    wide = (top - bottom > 2 * MAX_LOG).nonzero()
    if len(wide):
        told = f"the log-potentials over variables {scopes[wide[0, 0]].tolist()} are more than {2 * MAX_LOG:g} apart"
        raise BadInput(f"cannot write {path}: {told}, the smallest would become 0")
    return torch.where((top > MAX_LOG) | (bottom < -MAX_LOG), top / 2 + bottom / 2, 0)


def _constants(path: PathLike, total: float) -> list[list[float]]:
    """Return tables of constant factors whose logarithms sum to `total`."""
    if not abs(total) <= (most := MAX_CONSTANTS * MAX_LOG):
        expected = f"expected an exponent of at most {most:g}"
        raise BadInput(f"cannot write {path}: the constant of the model is exp({total:g}), {expected}")
    count = math.ceil(abs(total) / MAX_LOG)
    return [[math.exp(total / count)] for _ in range(count)]


def _with_or_without_samples(words: Tokens, parse: Callable[[Tokens], Parsed]) -> Parsed:
    """Parse the rest of a file; if that fails and a 1 comes first, the number of samples, parse what follows it."""
    errors, starts = [], [words.at]
    if words.words[words.at : words.at + 1] == ["1"]:
        starts.append(words.at + 1)
    for start in starts:
        words.at = start
        try:
            parsed = parse(words)
            words.end()
            return parsed
        except BadInput as error:
            errors.append(error)
    raise errors[0] if words.left else errors[-1]  # of the reading that got to the end


def _evidence(words: Tokens) -> dict[int, int]:
    count = words.whole("the number of observations")
    given = words.wholes(2 * count, f"the {count} pairs of a variable and a label")
    labels: dict[int, int] = {}
    for v, label in zip(given[::2], given[1::2], strict=True):
        if labels.setdefault(v, label) != label:
            raise words.bad(f"gives variable {v} the label {labels[v]} and then {label}, expected one label")
    return labels


def _rows(words: Tokens) -> list[list[float]]:
    rows: list[list[float]] = []
    for variable in range(words.count("the number of variables", "variables", 2)):
        labels = words.whole(f"the number of labels of variable {variable}")
        row = words.numbers(labels, what := f"the marginals of variable {variable}")
        if not labels or not ((row >= 0) & (row < math.inf)).all():
            raise words.bad(f"has {shown(_line(row.tolist()))} for {what}, expected numbers of at least 0")
        rows.append(row.tolist())
    return rows


def _labels(words: Tokens) -> list[int]:
    return words.wholes(words.whole("the number of variables"), "the labels")


def _log_z(words: Tokens) -> float:
    (value,) = words.numbers(1, "the logarithm of Z").tolist()
    if math.isnan(value) or value == math.inf:
        raise words.bad(f"has {value} for the logarithm of Z, expected a finite number or -inf")
    return value * math.log(10)


def _line(values: Iterable[float]) -> str:
    return " ".join(map(repr, values))


def _write(path: PathLike, lines: list[str]) -> None:
    try:
        write_text(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; give another path") from None
