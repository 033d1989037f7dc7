"""Scales: positive numbers that multiply the levels, each the same for a run of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.errors import BadInput
from mrfquant.labelling.flat import FlatParameters, part_of

Sharing = Literal["layer", "channel", "group"]


class Scales:
    """A scale for each run of weights of the labelled parameters, in their order.

    A run is a whole parameter ('layer'), its slice along the first dimension ('channel'), or up to `group_size`
    neighbouring weights of such a slice ('group'); a parameter of one dimension is one run. Where the scale is a given
    number (None), parameters are runs.

    Attributes:
        each: (m,) the scale of every weight.
        sharing: what a run is.
        lengths: (c,) the number of weights of every run.
        group_size: None but for 'group'.
    """

    def __init__(self, labelled: FlatParameters, sharing: Sharing | None, group_size: int | None = None) -> None:
        self.sharing = sharing
        self.group_size = group_size if sharing == "group" else None
        self.each = torch.ones_like(labelled.w)
        self._runs: list[tuple[int, int, Tensor, Runs]] = []
        self._places: dict[tuple[int, int], slice] = {}
        count = 0
        for (name, (first, last)), p in zip(labelled.spans.items(), labelled.parameters, strict=True):
            if self.group_size is not None and not p.is_contiguous():
                raise BadInput(
                    f"Labelling.scale = 'group' needs the rows of {name} one after another in memory, and it is in "
                    "channels_last or transposed: set Experiment.channels_last = False, or make it contiguous"
                )
            runs = _runs_of(p, sharing, self.group_size)
            self._runs.append((first, last, p, runs))
            self._places[first, last] = slice(count, count + runs.count)
            count += runs.count
        lengths = [length for *_, runs in self._runs for length in runs.lengths]
        self.lengths = torch.tensor(lengths, device=self.each.device)

    def average(self, x: Tensor, start: int = 0) -> Tensor:
        """The mean over each run (c,) of values (m,), or of those of the weights from `start` on that x has."""
        means = [runs.means(part) for part, runs in self._parts(x, start)]
        return torch.cat(means) if means else x.new_empty(0)

    def largest(self, x: Tensor) -> Tensor:
        """The largest of values (m,), none of them negative, of each run: (c,)."""
        return torch.cat([runs.largest(part) for part, runs in self._parts(x, 0)])

    def spread(self, values: Tensor, start: int = 0) -> None:
        """Set the scales of the weights, from `start` on, from those of their runs: (c,) or fewer."""
        for first, _, p, runs in self._runs:
            if first >= start and len(values):
                runs.spread(values[: runs.count], part_of(self.each, p, first))
                values = values[runs.count :]

    def of_runs(self) -> Tensor:
        """Return the scale of each run: (c,)."""
        return torch.cat([runs.firsts(part) for part, runs in self._parts(self.each, 0)])

    def span(self, first: int, last: int) -> slice:
        """The place among all runs of those of the parameter from `first` to `last` of the labelled vector."""
        return self._places[first, last]

    def _parts(self, x: Tensor, start: int) -> Iterator[tuple[Tensor, Runs]]:
        """The part of x for each parameter, in its shape, and how that is cut."""
        for first, last, p, runs in self._runs:
            if start <= first and last <= start + len(x):
                yield part_of(x, p, first - start), runs


@dataclass(frozen=True)
class Runs:
    """A parameter as rows of weights, each cut into runs of `size` weights, the last one shorter."""

    rows: int
    columns: int
    size: int

    @property
    def in_row(self) -> int:
        """Runs of a row."""
        return -(-self.columns // self.size)

    @property
    def count(self) -> int:
        """Runs of the parameter."""
        return self.rows * self.in_row

    @property
    def lengths(self) -> list[int]:
        """How many weights every run has."""
        return [min(self.size, self.columns - first) for first in range(0, self.columns, self.size)] * self.rows

    def firsts(self, x: Tensor) -> Tensor:
        """The first value of every run, of values in the parameter's shape: (count,)."""
        return x.reshape(self.rows, self.columns)[:, :: self.size].flatten()

    def means(self, x: Tensor) -> Tensor:
        """The mean over every run, of values in the parameter's shape: (count,)."""
        if self.in_row == 1:  # without a copy, however it lies in memory
            return x.mean(tuple(range(1 if self.rows > 1 else 0, x.dim()))).view(self.rows)
        rows, whole = x.reshape(self.rows, self.columns), self.columns // self.size
        means = rows[:, : whole * self.size].reshape(self.rows, whole, self.size).mean(2)
        if whole < self.in_row:
            means = torch.cat([means, rows[:, whole * self.size :].mean(1, keepdim=True)], 1)
        return means.flatten()

    def largest(self, x: Tensor) -> Tensor:
        """The largest over every run, of values in the parameter's shape that are not negative: (count,)."""
        rows = functional.pad(x.reshape(self.rows, self.columns), (0, self.in_row * self.size - self.columns))
        return rows.view(self.rows, self.in_row, self.size).amax(2).flatten()

    def spread(self, values: Tensor, out: Tensor) -> None:
        """Write the value of every run (count,) to its weights, in the parameter's shape."""
        runs = values.view(self.rows, self.in_row, 1).expand(-1, -1, self.size)
        out.copy_(runs.flatten(1)[:, : self.columns].reshape(out.shape))


def _runs_of(p: Tensor, sharing: Sharing | None, group_size: int | None) -> Runs:
    rows = len(p) if sharing in ("channel", "group") and p.dim() > 1 else 1
    columns = p.numel() // max(1, rows)
    return Runs(rows, columns, max(1, columns if group_size is None or p.dim() < 2 else min(group_size, columns)))
