"""What processes that train one network together do beside their steps: start alike, average gradients, join states.

They keep all variables each, or share them out (`Labelling.shard`): then a solver has a part of every block, and works
on it as it would on a whole one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.compute import Team, present_team, widest
from mrfquant.energies import Energy
from mrfquant.errors import BadInput
from mrfquant.inference.as_optimizer import AsOptimizer
from mrfquant.labelling import Block


class InProcesses(AsOptimizer):
    """An optimizer over a network whose variables may be shared out among processes; all of this is free alone.

    Attributes:
        variables: one tensor per block, with the weights along the last dimension: what this process has of them.
        by_weight: whether `gradient`, `project` and `labels` treat each weight by itself; see `Labelling.shard`.
    """

    by_weight = False
    energy: Energy
    variables: list[Tensor]
    _shared = False  # whether the processes have started alike
    _scale_gradient: Tensor | None = None  # of learned scales, from all of the gradient, before it is scattered

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "by_weight" not in vars(cls) and {"gradient", "project", "labels"} & set(vars(cls)):
            cls.by_weight = False  # what the parent says is not about these

    @abstractmethod
    def items(self) -> Iterator[tuple[Block, Tensor]]:
        """Every block with its variables; its part of them, where processes share them out."""

    @abstractmethod
    def restore(self, block: Block, x: Tensor) -> None:
        """Rebuild what the solver keeps besides x and the weights, when both were just loaded."""

    def check_parts(self) -> None:
        """Raise BadInput unless parts of blocks can be solved for in several processes."""
        for part in (self, self.energy):
            if not part.by_weight:
                raise BadInput(
                    f"Labelling.shard cuts layers, and {type(part).__name__} does not say that it treats each weight "
                    "by itself: leave it out, or set by_weight = True in the class if it does"
                )

    @torch.no_grad()
    def average_gradients(self, team: Team) -> None:
        """Replace the gradient that backward has left by its mean over the processes; where they share the variables
        out, this process's part of it."""
        if not self.labelling.sharded:
            team.average(self.labelling.gradients())
            return
        self.labelling.gradients()  # collects them
        if (scales := self.labelling.learned) is not None:
            self._scale_gradient = scales.gradient(self.labelling.labelled.g, self.labelling.labelled.w)
            team.average([self._scale_gradient])
        self.labelling.scatter_gradients()

    @torch.no_grad()
    def clip_gradients(self, largest: float, team: Team) -> None:
        """Scale the gradient of all parameters so that its norm is at most `largest`."""
        if not self.labelling.sharded:
            nn.utils.clip_grad_norm_(self.labelling.model.parameters(), largest)
            return
        own = [flat.g[flat.own] for flat in (self.labelling.labelled, self.labelling.free)]
        norm = team.total(torch.stack([g.square().sum() for g in own]).sum()).sqrt()
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)  # torch's own
        for g in (*own, self._scale_gradient):
            if g is not None:
                g.mul_(factor)

    def _share(self) -> None:
        """Processes that train together start from the first one's variables, whatever seeds they had."""
        team = present_team()
        if team.world_size > 1 and not self.labelling.sharded:  # these did when they were built
            for x in self.variables:
                team.broadcast(x)
            self._share_weights()
            for block, x in self.items():
                self.restore(block, x)
            self.labelling.publish()
        self.labelling.accept_weights()
        self._shared = True

    def _share_weights(self) -> None:
        """The first process's weights and scales in all of them."""
        for tensor in (self.labelling.free.w, self.labelling.labelled.w, self.labelling.scale):
            if tensor is not None:
                present_team().broadcast(tensor)
        if self.labelling.learned is not None:
            self.labelling.learned.read()

    def _of_all(self, number: float) -> float:
        """A sum over this process's part of the variables, as one over all of them."""
        if not self.labelling.sharded:
            return number
        w = self.labelling.labelled.w
        return present_team().total(w.new_tensor(number, dtype=widest(w.device))).item()

    def _joined(self, own: list[Tensor]) -> list[Tensor]:
        """What every process has a part of, one tensor for each block, as a whole; with the leader only."""
        shards, device = self.labelling.labelled.shards, self.labelling.labelled.w.device
        if shards is None:
            return own
        spans = [(block.start, block.start + block.m) for block in self.labelling.blocks]
        return [shards.joined(x.to(device), *span) for x, span in zip(own, spans, strict=True)]

    def _own(self, block: Block, whole: Tensor) -> Tensor:
        """This process's part of what belongs to a block: (..., m)."""
        if (shards := self.labelling.labelled.shards) is None:
            return whole
        return shards.cut(whole, block.start, block.start + block.m).clone()  # a view would keep the whole
