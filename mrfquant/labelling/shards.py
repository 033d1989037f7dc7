"""How a vector is divided among processes that train together, each of which keeps the variables of its part."""

from __future__ import annotations

import torch
from torch import Tensor

from mrfquant.compute import Team

ALIGNED = 16  # numbers: parts begin where whole registers and cache lines do


class Shards:
    """A vector of m numbers in parts of one length, one for each process in their order; the last may be shorter.

    A block lies somewhere in such a vector, from `first` to `last`; a process keeps what its part has of it, which may
    be nothing.

    Attributes:
        team: the processes.
        length: of a part.
        room: of all parts together, a little more than m: what collective operations need.
    """

    def __init__(self, m: int, team: Team) -> None:
        self.team = team
        self.length = -(-m // (team.world_size * ALIGNED)) * ALIGNED
        self.room = self.length * team.world_size

    def span(self, first: int, last: int, rank: int | None = None) -> tuple[int, int]:
        """Return the part of the vector from `first` to `last` that a process has, this one by default."""
        begin = self.length * (self.team.rank if rank is None else rank)
        start = min(max(first, begin), last)
        return start, max(start, min(last, begin + self.length))

    def cut(self, x: Tensor, first: int, last: int) -> Tensor:
        """Return this process's part of values (..., last - first) from `first` to `last` of the vector."""
        start, stop = self.span(first, last)
        return x[..., start - first : stop - first]

    def joined(self, x: Tensor, first: int, last: int) -> Tensor:
        """Return the values (..., last - first) of all processes, of which x is this one's part.

        With the leader only, on the host, the others get their own. Row after row, so that the device needs memory for
        one.
        """
        sizes = [stop - start for start, stop in (self.span(first, last, r) for r in range(self.team.world_size))]
        rows = [self.team.collect(row.contiguous(), sizes) for row in (x[None] if x.dim() == 1 else x)]
        if not self.team.leads:
            return x
        return torch.stack([row.cpu() for row in rows]).view(*x.shape[:-1], last - first)
