"""REF: the floating-point network, trained as usual; what every quantized one is measured against."""

from __future__ import annotations

from typing import Any

from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput
from mrfquant.inference.base import Inference, OptimizerRecipe
from mrfquant.labelling import Labelling


@configurable(supplied=["labelling", "optimizer"])
class Reference(Inference):
    """Gradient descent on the weights: all parameters are free, none is labelled.

    Args:
        optimizer: makes the optimizer of the parameters. One that quantizes by itself names its `method`.
    """

    method = "REF"
    needs_levels = False
    relaxed = False
    by_weight = True

    def __init__(self, labelling: Labelling, optimizer: OptimizerRecipe, **settings: Any) -> None:
        if labelling.blocks:
            raise BadInput("Reference trains in floating point: remove Labelling.levels, or choose another inference")
        super().__init__(labelling, optimizer, **settings)
        self.method = getattr(optimizer, "method", self.method)

    def start(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a labelling without levels has no blocks")

    update = write = labels = start
