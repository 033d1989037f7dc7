"""Figures about the labels of a solver, for logs and decisions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mrfquant.compute import present_team, widest
from mrfquant.energies import FirstOrderTaylor
from mrfquant.families import Distribution

Solver = Any  # an Inference, whose file imports this one


class Report:
    """What a solver's labels look like, and what has changed since the last look.

    Attributes:
        seen: the labels at the last look, small and on the host, one tensor for each block.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.seen = self._look()

    @torch.no_grad()
    def figures(self) -> dict[str, float]:
        """Return the share of labels that changed since the last look; with a distribution, its mean entropy in bits
        per weight and the share of weights it has decided."""
        solver, m = self.solver, len(self.solver.labelling)
        if not m:
            return {}
        labels = self._look()
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

    def fraction_decided(self) -> float:
        """Return the fraction of weights with a label of probability 0.99 or more; 1 without a distribution."""
        if not (found := self.decided(0.99)):
            return 1.0
        decided = sum(block.sum().item() for block in found)
        return self.solver.processes.total(decided) / len(self.solver.labelling)

    @torch.no_grad()
    def decided(self, threshold: float) -> list[Tensor] | None:
        """Return whether a label of each weight has this probability, bool (m,) for every block; None without one."""
        found: list[Distribution] | None = self.solver.distributions()
        return None if found is None else [p.decided(threshold) for p in found]

    def _look(self) -> list[Tensor]:
        solver = self.solver
        return [solver.labels(b, x).to("cpu", torch.uint8 if b.d <= 256 else torch.int32) for b, x in solver.items()]
