"""Questions to a solver at any time: the rounded network, samples, figures, its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.families import Distribution
from mrfquant.inference.checks import check_answer, warn_of_labels
from mrfquant.inference.state import load_solution, solution

Solver = Any  # an Inference, to methods that are a part of it


class Answers:
    """The part of `Inference` that reads where a solver stands, and ends it."""

    def finalize(self: Solver) -> nn.Module:
        """End training: the network becomes an ordinary one, without a solver, each labelled weight exactly on a level.

        It can be saved, exported, packed (with the labelling) or trained further by other means. Done twice, it changes
        nothing.

        Returns:
            The network.
        """
        if not self.finalized:
            check_answer(self)
            warn_of_labels(self)
            with self.rounded():
                self.labelling.release()
            self.finalized = True
            self.blocked = "the solver is finalized: its network is an ordinary one, label it again to go on"
        return self.labelling.model

    @torch.no_grad()
    def write_all(self: Solver) -> None:
        """Set the network's weights from the variables."""
        for block, x in self.items():
            self.write(block, x)
        self.labelling.gather_weights()
        self.labelling.publish()

    @contextmanager
    def rounded(self: Solver) -> Iterator[None]:
        """Let the network compute, within the block, with the answer: each labelled weight exactly on a level."""
        with self.computing_with([self.labels(*item) for item in self.items()]):
            yield

    @contextmanager
    def sampled(self: Solver, generator: torch.Generator | None = None) -> Iterator[None]:
        """Let the network compute, within the block, with labels drawn from their distribution."""
        if self.labelling.sharded:
            raise BadInput("labels are drawn for whole blocks, of which every process has a part: use one process")
        if (distributions := self.distributions()) is None:
            raise BadInput(f"{type(self).__name__} has no distribution over labels to sample from")
        with torch.no_grad():
            labels = [p.sample(generator) for p in distributions]
        with self.computing_with(labels):
            yield

    @contextmanager
    def computing_with(self: Solver, labels: Sequence[Tensor]) -> Iterator[None]:
        """Let the network compute, within the block, with labels (m,) for every block."""
        if self.finalized:
            yield  # it does
            return
        check_answer(self)
        labelled, before = self.labelling.labelled, self.blocked
        kept = labelled.w.clone()
        self.blocked = "a step within rounded() or sampled() would be lost at its end: step before or after it"
        with torch.no_grad():
            for block, chosen in zip(self.labelling.local_blocks, labels, strict=True):
                block.write_labels(chosen)
            labelled.gather_weights()
            labelled.publish()
        try:
            yield
        finally:
            self.blocked = before
            labelled.w.copy_(kept)
            labelled.publish()

    def distributions(self: Solver) -> list[Distribution] | None:
        """Return the distribution of every block, or None for a solver that has none."""
        found = [p for block, x in self.items() if (p := self.distribution(block, x)) is not None]
        return found if len(found) == len(self.variables) and found else None

    def settings(self: Solver) -> dict[str, float]:
        """Return what is in force now, known without touching a tensor."""
        return {"learning_rate": self.param_groups[0]["lr"]} | ({"beta": self.beta} if self.has_beta else {})

    def energies(self: Solver) -> dict[str, float]:
        """Return the values of the energy, or of its terms, between backward and `step`, by name. Waits for the device.

        The first-order model alone is left out: <g, w> of one batch.
        """
        self.begin()
        return {name: value.item() for name, value in self.report.energies().items()}

    def diagnostics(self: Solver) -> dict[str, float]:
        """Return figures about the labels: flips since the last look, entropy in bits per weight, share decided."""
        return self.report.figures()

    def layer_entropy(self: Solver) -> dict[str, float]:
        """Return the mean entropy in bits per weight of every labelled parameter."""
        return self.report.layer_entropy()

    def solution(self: Solver) -> dict[str, Any]:
        """Return the solver's state without the optimizer's: enough to round or sample again."""
        return solution(self)

    def load_solution(self: Solver, saved: dict[str, Any]) -> None:
        """Stand where a solver of the same kind on the same labelling stood."""
        load_solution(self, saved)

    def state_dict(self: Solver) -> dict[str, Any]:
        """Return everything that a later `load_state_dict` needs to go on as if nothing had happened."""
        seen = self.processes.joined(self.report.seen)
        return {**self.solution(), "optimizer": self.inner_state(), "seen": seen}

    def load_state_dict(self: Solver, state: dict[str, Any]) -> None:
        """Go on from a state of the same solver on the same labelling."""
        self.load_solution(state)
        self.load_inner_state(state["optimizer"])
        blocks = self.labelling.blocks
        self.report.seen = [self.processes.own(b, x) for b, x in zip(blocks, state["seen"], strict=True)]
