"""The solver of a rounded network, which holds the labels that rounding has found."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.inference import LatentInference
from mrfquant.inference.base import OptimizerRecipe
from mrfquant.labelling import Block, Labelling
from mrfquant.rounding.answers import RoundedWeight
from mrfquant.rounding.network import Rounding


@configurable(supplied=["labelling", "optimizer"])
class Rounded(LatentInference):
    """Labels that were assigned to a trained network and do not change.

    Args:
        rounding: assigns the labels; None where they are there already.
    """

    method = "ROUND"
    relaxed = trains = False

    def __init__(self, labelling: Labelling, optimizer: OptimizerRecipe, rounding: Rounding | None = None) -> None:
        super().__init__(labelling, optimizer)
        self.rounding = rounding
        self.method = f"ROUND {rounding.solver.name}" if rounding else "ROUND"

    def bind(self, start: str) -> None:
        """Take every labelling, a trellis too: the labels were found elsewhere."""

    def update(self, block: Block, x: Tensor) -> None:
        return None

    def write(self, block: Block, x: Tensor) -> None:
        block.write_labels(block.nearest(x))

    @torch.no_grad()
    def assign(self, found: Mapping[str, RoundedWeight]) -> None:
        """Set the labels and scales of every labelled parameter."""
        labelled, scales = self.labelling.labelled, self.labelling.scales
        assert scales is not None, "the labelling has no scales to set"
        values = torch.empty_like(labelled.w)
        for name, answer in found.items():
            labelled.view(name, values).copy_(self.labelling.block_of(name).q[answer.labels.long()])
            span, scale = labelled.spans[name], answer.scale.expand(answer.labels.shape)
            scales.weights.values[scales.span(*span)] = scales.runs(*span).firsts(scale)
        for block, x in self.items():
            x.copy_(values[block.start : block.start + block.m])
        self.write_all()
