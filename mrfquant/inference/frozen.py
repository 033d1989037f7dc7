"""Parameters that are frozen while a solver trains stay where they are, though the optimizer moves whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrfquant.inference.learned_scales import LearnedScales
from mrfquant.labelling import Labelling


class FrozenParameters:
    """Variables, weights and scales of parameters that do not require a gradient now.

    The optimizer and annealing move them, so they are brought back after each.

    Args:
        labelling: the parameters.
        variables: one tensor for each local block, with the weights along its last dimension.
        scales: the learned ones, if there are any.
    """

    def __init__(self, labelling: Labelling, variables: Sequence[Tensor], scales: LearnedScales | None) -> None:
        places = [labelling.free.w[first:last] for first, last in labelling.free.frozen()]
        for first, last in labelling.labelled.frozen():
            for block, x in zip(labelling.local_blocks, variables, strict=True):
                start, stop = max(first, block.start), min(last, block.start + block.m)
                if start < stop:
                    cut = slice(start - block.start, stop - block.start)
                    places += [x[..., cut], block.w[cut]]
            if labelling.scales is not None:
                places.append(labelling.scales.weights.values[labelling.scales.span(first, last)])
            if scales is not None:
                places.append(scales.narrow(first, last))
        self._kept = [(place, place.clone()) for place in places]

    def restore(self) -> None:
        """Undo what has been done to them."""
        for place, before in self._kept:
            place.copy_(before)
