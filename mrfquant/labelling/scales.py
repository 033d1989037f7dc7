"""Scales: positive numbers that multiply the levels, each the same for a run of weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.errors import BadInput
from mrfquant.kernels import dispatch
from mrfquant.labelling.flat import FlatParameters
from mrfquant.labelling.matrices import PLAIN, Matrix

Sharing = Literal["layer", "channel", "group"]
FIT_SHARE = 2**16  # values that a thread fits scales to at least
CHUNK = 2**20  # weights whose scales are written out at once where no loop is compiled


@dataclass(eq=False)
class RunScales:
    """The scales of weights that follow each other: a number for each run of them, never one for each weight.

    Attributes:
        values: (c,) the scale of every run.
        ends: (c,) int64, where every run ends.
        start: the place of the first of these weights, counted as `ends` are.
        m: how many weights these are.
        given: whether they are a number that was given, which no fit changes.
    """

    values: Tensor
    ends: Tensor
    start: int
    m: int
    given: bool = False

    def narrow(self, start: int, stop: int) -> RunScales:
        """Return those of the weights from place `start` to place `stop`."""
        return replace(self, start=start, m=stop - start)

    @functools.cached_property
    def runs(self) -> tuple[int, int]:
        """The numbers of the first run of these weights and of the one behind their last."""
        ends = self.ends.new_tensor([self.start, self.start + self.m - 1])
        first, last = torch.searchsorted(self.ends, ends, right=True).tolist()
        return first, last + 1

    def each(self) -> Tensor:
        """Return the scale of every weight: (m,), new memory."""
        return self.multiply(self.values.new_ones(self.m))

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply values (m,) by the scales, in place, and return them."""
        return self._apply(x, inverse=False)

    def divide(self, x: Tensor) -> Tensor:
        """Divide values (m,) by the scales, in place, and return them."""
        return self._apply(x, inverse=True)

    def fit(self, x: Tensor, levels: Tensor, midpoints: Tensor, sweeps: int = 1) -> None:
        """Fit the scales to values x (m,), in place: least squares with the labels nearest to x at the present ones.

        A sweep is one step of ICM over labels and scales. A run whose values are all nearest to the level 0 begins
        again at its largest magnitude, and a run of zeros keeps its scale. Sweeps end where none would change anything.
        """
        self._fit_once(x, levels, midpoints)
        for _ in range(sweeps - 1):
            before = self.values.clone()
            self._fit_once(x, levels, midpoints)
            if x.device.type == "cpu" and torch.equal(before, self.values):  # elsewhere it would wait
                return

    def _fit_once(self, x: Tensor, levels: Tensor, midpoints: Tensor) -> None:
        first, last = self.runs
        if dispatch.usable(x, self.values, levels, midpoints, smallest=0):
            runs = self.values[first:last], self.ends[first:last]
            smallest = max(1, (last - first) * FIT_SHARE // len(x))
            given = (*runs, self.start, levels, midpoints)
            dispatch.run("runs.fit_runs", x, *given, size=last - first, smallest=smallest)
            return
        q, over_runs = levels[torch.bucketize(self.divide(x.clone()), midpoints)], self._reduction()
        product, square, largest = over_runs(x * q, "sum"), over_runs(q * q, "sum"), over_runs(x.abs(), "max")
        begun = torch.where(largest > 0, largest, self.values[first:last])
        self.values[first:last] = torch.where(product > 0, product / square, begun)

    def least_squares(self, x: Tensor, q: Tensor, factor: float = 1.0) -> None:
        """Set scales to `factor` times those that bring levels q (m,) closest to x (m,); where q is 0 they stay."""
        (first, last), over_runs = self.runs, self._reduction()
        product, square = over_runs(x * q, "sum"), over_runs(q * q, "sum")
        self.values[first:last] = torch.where(product > 0, factor * product / square, self.values[first:last])

    def _reduction(self) -> Callable[..., Tensor]:
        """Return what reduces values (m,) to one for each run: torch.segment_reduce, without waiting for the device."""
        first, last = self.runs
        lengths = self.ends[first:last].diff(prepend=self.ends.new_full((1,), self.start))
        return functools.partial(torch.segment_reduce, lengths=lengths, unsafe=True)  # its checks would wait

    def _apply(self, x: Tensor, inverse: bool) -> Tensor:
        if dispatch.usable(x, self.values):
            dispatch.run("runs.scale_runs", x, self.values, self.ends, self.start, inverse)
            return x
        place = self.start
        for part in x.split(max(1, self.m) if torch.compiler.is_compiling() else CHUNK):
            places = torch.arange(place, place + len(part), device=x.device)
            each = self.values[torch.bucketize(places, self.ends, right=True)]
            part.div_(each) if inverse else part.mul_(each)
            place += len(part)
        return x


class Scales:
    """A scale for each run of weights of the labelled parameters, in their order.

    A run is a whole parameter ('layer'), one of its rows, see `Matrix` ('channel'), or up to `group_size` neighbouring
    weights of a row ('group'); a parameter of one dimension is one run. Where the scale is a given number (None),
    parameters are runs.

    Attributes:
        weights: the scales of all labelled weights; `weights.values` are those of the runs (c,).
        sharing: what a run is.
        lengths: (c,) the number of weights of every run.
        group_size: None but for 'group'.
    """

    def __init__(self, labelled: FlatParameters, sharing: Sharing | None, group_size: int | None = None) -> None:
        self.sharing = sharing
        self.group_size = group_size if sharing == "group" else None
        self._runs: list[tuple[int, int, Runs]] = []
        self._places: dict[tuple[int, int], slice] = {}
        count = 0
        for (name, (first, last)), p in zip(labelled.spans.items(), labelled.parameters, strict=True):
            matrix = labelled.matrix(name)
            if self.group_size is not None and not matrix.in_rows(p).is_contiguous():
                raise BadInput(
                    f"Labelling.scale = 'group' needs the rows of {name} one after another in memory, and it is in "
                    "channels_last: set Experiment.channels_last = False, or make it contiguous"
                )
            runs = _runs_of(p, sharing, self.group_size, matrix)
            self._runs.append((first, last, runs))
            self._places[first, last] = slice(count, count + runs.count)
            count += runs.count
        lengths = [torch.empty(0, dtype=torch.int64), *(runs.lengths for *_, runs in self._runs)]
        self.lengths = torch.cat(lengths).to(labelled.w.device)
        self.weights = RunScales(
            labelled.w.new_ones(count), self.lengths.cumsum(0), 0, len(labelled), given=sharing is None
        )

    def average(self, x: Tensor, start: int = 0, of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the mean over each run (c,) of values (m,), or of those of the weights from `start` on that x has.

        Args:
            of: a function of the values of a parameter, whose mean it is then.
        """
        parts = ((runs, x[first - start : last - start]) for first, last, runs in self._within(start, len(x)))
        means = [runs.means(part if of is None else of(part)) for runs, part in parts]
        return torch.cat(means) if means else x.new_empty(0)

    def set(self, values: Tensor, start: int = 0) -> None:
        """Set the scales of the runs from the weight at `start` on: (c,) or fewer."""
        first = next((self._places[a, b].start for a, b, _ in self._runs if a >= start), 0)
        self.weights.values[first : first + len(values)] = values

    def span(self, first: int, last: int) -> slice:
        """Return the place among all runs of those of the parameter from `first` to `last` of the labelled vector."""
        return self._places[first, last]

    def runs(self, first: int, last: int) -> Runs:
        """Return how the parameter from `first` to `last` of the labelled vector is cut."""
        return next(runs for a, b, runs in self._runs if (a, b) == (first, last))

    def _within(self, start: int, m: int) -> Iterator[tuple[int, int, Runs]]:
        return ((a, b, runs) for a, b, runs in self._runs if start <= a and b <= start + m)


@dataclass(frozen=True)
class Runs:
    """A parameter as rows of weights, each cut into runs of `size` weights, the last one shorter."""

    rows: int
    columns: int
    size: int
    matrix: Matrix = PLAIN

    @property
    def in_row(self) -> int:
        """Runs of a row."""
        return -(-self.columns // self.size)

    @property
    def count(self) -> int:
        """Runs of the parameter."""
        return self.rows * self.in_row

    @property
    def lengths(self) -> Tensor:
        """How many weights every run has: int64 (count,)."""
        row = torch.full((self.in_row,), self.size)
        row[-1:] = self.columns - self.size * (self.in_row - 1)
        return row.repeat(self.rows)

    def firsts(self, x: Tensor) -> Tensor:
        """Return the first value of every run, of values in the parameter's shape: (count,)."""
        return self.matrix.in_rows(x).reshape(self.rows, self.columns)[:, :: self.size].flatten()

    def means(self, x: Tensor) -> Tensor:
        """Return the mean over every run of values (rows x columns,): (count,)."""
        rows, whole = x.view(self.rows, self.columns), self.columns // self.size
        means = rows[:, : whole * self.size].reshape(self.rows, whole, self.size).mean(2)
        if whole < self.in_row:
            means = torch.cat([means, rows[:, whole * self.size :].mean(1, keepdim=True)], 1)
        return means.flatten()

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest over every run of values (rows x columns,) that are not negative: (count,)."""
        rows = functional.pad(x.view(self.rows, self.columns), (0, self.in_row * self.size - self.columns))
        return rows.view(self.rows, self.in_row, self.size).amax(2).flatten()

    def each(self, values: Tensor) -> Tensor:
        """Return the value of every run (count,) at each of its weights: (rows, columns)."""
        if self.in_row == 1:  # without new memory
            return values.view(self.rows, 1).expand(self.rows, self.columns)
        return values.view(self.rows, self.in_row, 1).expand(-1, -1, self.size).flatten(1)[:, : self.columns]

    def spread(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the same in the parameter's shape."""
        return self.matrix.back(self.each(values).reshape(self.matrix.rows(shape)), shape)


def _runs_of(p: Tensor, sharing: Sharing | None, group_size: int | None, matrix: Matrix) -> Runs:
    rows = 1
    if sharing in ("channel", "group") and p.dim() > 1:
        rows = matrix.rows(p.shape)[0]
    columns = p.numel() // max(1, rows)
    size = max(1, columns if group_size is None or p.dim() < 2 else min(group_size, columns))
    return Runs(rows, columns, size, matrix)
