"""Figures about the labels of a solver, for logs and decisions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrfquant.compute import present_team, widest
from mrfquant.energies import FirstOrderTaylor
from mrfquant.kernels.packed import byte_values, pack_rows, unpack_rows

DECIDED = 0.99  # the probability from which on a label counts as decided
Solver = Any  # an Inference, whose file imports this one


class Report:
    """Figures of a solver's labels, and of their changes since the last look."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.seen = self._present_labels()

    @property
    def seen(self) -> list[Tensor]:
        """The labels at the last look, on the host, one tensor (m,) for each block; kept in as few bits as fit."""
        return [
            _unpacked(bits, b.d, b.m) for b, bits in zip(self.solver.labelling.local_blocks, self._bits, strict=True)
        ]

    @seen.setter
    def seen(self, labels: list[Tensor]) -> None:
        self._bits = [_packed(x, b.d) for b, x in zip(self.solver.labelling.local_blocks, labels, strict=True)]

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        """Return the share of labels that changed since the last look, and figures of the distribution if there is one.

        Those are its mean entropy in bits per weight and the share of weights it has decided.
        """
        solver, m = self.solver, len(self.solver.labelling)
        if not m:
            return {}
        labels = self._present_labels()
        flips = sum((a != b).sum().item() for a, b in zip(labels, self.seen, strict=True))
        found, self.seen = {"flips": solver.processes.total(flips) / m}, labels
        if (distributions := solver.distributions()) is not None:
            sums = (p.entropy().sum(dtype=widest(p.block.w.device)).item() for p in distributions)
            found["entropy"] = solver.processes.total(sum(sums)) / m
            found["decided"] = self.fraction_decided()
        return found

    @torch.no_grad()
    def layer_entropy(self) -> dict[str, float]:
        """Return the mean entropy in bits per weight of every labelled parameter; nothing without a distribution."""
        if not (distributions := self.solver.distributions()):
            return {}
        labelled, own = self.solver.labelling.labelled, self.solver.labelling.labelled.own
        entropies = torch.cat([labelled.w[:0], *(p.entropy() for p in distributions)])  # blocks follow each other
        spans = [(max(first, own.start), min(last, own.stop)) for first, last in labelled.spans.values()]
        sums = torch.stack([entropies[a - own.start : max(a, b) - own.start].sum() for a, b in spans])
        if self.solver.labelling.sharded:
            present_team().total(sums)
        sizes = [last - first for first, last in labelled.spans.values()]
        return {n: bits / size for n, bits, size in zip(labelled.spans, sums.tolist(), sizes, strict=True)}

    @torch.no_grad()
    def energies(self) -> dict[str, Tensor]:
        """Return the values of the energy, or of the terms it is the sum of, over all blocks.

        That of the first-order model alone is left out, <g, w> of one batch; so is that of a solver without a
        distribution.
        """
        total: dict[str, Tensor] = {}
        if type(self.solver.energy) is FirstOrderTaylor or (found := self.solver.distributions()) is None:
            return total
        for p in found:
            for name, value in self.solver.energy.values(p).items():
                total[name] = total[name] + value if name in total else value
        return total

    @torch.no_grad()
    def fraction_decided(self) -> float:
        """Return the fraction of weights whose label is decided; 1 without a distribution."""
        if not (found := self.solver.distributions()):
            return 1.0
        decided = sum(p.decided(DECIDED).sum().item() for p in found)
        return self.solver.processes.total(decided) / len(self.solver.labelling)

    @torch.no_grad()
    def commonest_level(self) -> tuple[float, float]:
        """Return the largest share of the weights of a level set that one of its levels has, and that level."""
        counts: dict[Any, Tensor] = {}
        for block, x in self.solver.items():
            found = torch.bincount(self.solver.labels(block, x), minlength=block.d)
            counts[block.levels] = counts.get(block.levels, 0) + found
        shares = [(max(c / c.sum()), levels.values[int(c.argmax())]) for levels, c in counts.items() if c.sum()]
        return max(((share.item(), level) for share, level in shares), default=(0.0, 0.0))

    def _present_labels(self) -> list[Tensor]:
        solver = self.solver
        return [solver.labels(b, x).to("cpu", torch.uint8 if b.d <= 256 else torch.int32) for b, x in solver.items()]


def _packed(labels: Tensor, d: int) -> Tensor:
    return pack_rows(labels[None], d) if d <= 256 else labels


def _unpacked(packed: Tensor, d: int, m: int) -> Tensor:
    if d > 256:
        return packed
    return unpack_rows(packed, m, byte_values(torch.arange(d, dtype=torch.uint8, device="cpu")))[0]
