"""Several processes that train one network: they start alike, average gradients and join their states.

They keep all variables each, or share them: then a solver has a shard of every block, and works on it as it would on a
whole one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.compute import Team, present_team, widest
from mrfquant.errors import BadInput
from mrfquant.labelling import Block

Solver = Any  # an Inference, whose file imports this one


class Processes:
    """The processes that train together with this one; all of this is free alone.

    Args:
        solver: this process's, with its labelling and energy.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver, self.labelling, self.sharded = solver, solver.labelling, solver.labelling.sharded
        self._alike = False  # whether all have started from the same variables
        if self.sharded:
            for part in (solver, solver.energy):
                if not part.by_weight:
                    raise BadInput(
                        f"shard cuts layers, and {type(part).__name__} does not say that it treats each weight by "
                        "itself: leave it out, or set by_weight = True in the class if it does"
                    )
            self._share_weights()

    @torch.no_grad()
    def average_gradients(self, team: Team) -> None:
        """Replace the gradient that backward has left by its mean over the processes; a sharded solver's, its shard."""
        gradients = self.labelling.collect_gradients()
        if not self.sharded:
            team.average(gradients)
            return
        if (scales := self.solver.learned_scales) is not None:
            averaged = scales.gradient()
            team.average([averaged])
            scales.keep_averaged(averaged)
        self.labelling.scatter_gradients()

    @torch.no_grad()
    def clip_gradients(self, largest: float, team: Team) -> None:
        """Scale the gradient of all parameters so that its norm is at most `largest`."""
        if not self.sharded:
            nn.utils.clip_grad_norm_(self.labelling.model.parameters(), largest)
            return
        own = [flat.g[flat.own] for flat in (self.labelling.labelled, self.labelling.free)]
        norm = team.total(torch.stack([g.square().sum() for g in own]).sum()).sqrt()
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)  # torch's own
        for g in (*own, *(self.solver.learned_scales.averaged if self.solver.learned_scales else ())):
            g.mul_(factor)

    def start_alike(self) -> None:
        """Start from the first process's variables, whatever seeds the others had; once."""
        if self._alike:
            return
        team, self._alike = present_team(), True
        if team.world_size > 1 and not self.sharded:  # these did when they were built
            for x in self.solver.variables:
                team.broadcast(x)
            self._share_weights()
            for block, x in self.solver.items():
                self.solver.restore(block, x)
            self.labelling.publish()
            self.labelling.mark_clean()

    def _share_weights(self) -> None:
        """Take the first process's weights and scales."""
        for tensor in (self.labelling.free.w, self.labelling.labelled.w, self.labelling.scale_of_runs):
            if tensor is not None:
                present_team().broadcast(tensor)
        if self.solver.learned_scales is not None:
            self.solver.learned_scales.reload()

    def total(self, number: float) -> float:
        """Return a sum over all weights, given that over this process's."""
        if not self.sharded:
            return number
        w = self.labelling.labelled.w
        return present_team().total(w.new_tensor(number, dtype=widest(w.device))).item()

    def any(self, happened: bool) -> bool:
        """Return whether something has happened in a process that shares the variables, or in this one."""
        return present_team().any(happened, self.labelling.labelled.w.device) if self.sharded else happened

    def joined(self, own: list[Tensor]) -> list[Tensor]:
        """Join shards, one tensor for each block, to whole ones; with the leader only."""
        shards, device = self.labelling.labelled.shards, self.labelling.labelled.w.device
        if shards is None:
            return own
        spans = [(block.start, block.start + block.m) for block in self.labelling.blocks]
        return [shards.joined(x.to(device), *span) for x, span in zip(own, spans, strict=True)]

    def own(self, block: Block, whole: Tensor) -> Tensor:
        """Return this process's shard of what belongs to a block: (..., m)."""
        if (shards := self.labelling.labelled.shards) is None:
            return whole
        return shards.cut(whole, block.start, block.start + block.m).clone()  # a view would keep the whole

    def drawn(self, block: Block) -> Tensor:
        """Return random initial weights of a block (m,), the same in all processes that share it."""
        drawn = self.labelling.initial_weights()
        if self.sharded:
            present_team().broadcast(drawn)
        return drawn[block.start : block.start + block.m]
