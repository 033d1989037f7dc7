"""The one place where a block gets its family, and a family the backend of its steps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mrfquant.families.base import Betas, Family, Form, FusedRule, Gradient
from mrfquant.families.chain import Chain, ChainInWells
from mrfquant.families.graph import Graph
from mrfquant.families.line import LineFamily, PairFamily
from mrfquant.families.planes import PlanesFamily
from mrfquant.families.wells import Wells
from mrfquant.labelling import Block, Trellis
from mrfquant.projections import Hardmax, Projection, Softmax, Sparsemax

GRAPH_DEVICES = {"cuda", "xpu"}
# Classes that torch.compile is known to trace.
TRACED = (PairFamily, LineFamily, PlanesFamily, Wells, Softmax, Sparsemax, Hardmax)

Backend = Callable[[Gradient, Tensor, Betas, FusedRule], bool]
"""Does what a family's `pull_back`, an optimizer and `write` would do, and clears the block's gradient, in one call.

It takes the energy's gradient, x, which is moved in place, the betas (what x was written at, the factor of `pull_back`,
and beta after the step), and what gives the optimizer's rule for x, or None if it is not one of those known. It returns
whether it could; if not, nothing has moved.
"""


def family_of(block: Block, projection: Projection, form: Form, spacing: float) -> Family:
    """Return the family of a block: the one its level set names, chains for a trellis, or one for independent labels.

    Args:
        block: whose level set may name a class as `family`.
        projection: what the family is combined with.
        form: 'wells' around trained weights, 'line', or 'planes'; two levels on a line are a pair.
        spacing: of the levels on a line.
    """
    if (own := getattr(block.levels, "family", None)) is not None:
        return own(block, projection)
    if isinstance(block.levels, Trellis):
        return (ChainInWells if form == "wells" else Chain)(block, projection)
    if form == "wells":
        return Wells(block, projection)
    if form == "planes":
        return PlanesFamily(block, projection)
    return PairFamily(block, projection) if block.d == 2 else LineFamily(block, projection, spacing)


def backend_of(family: Family, x: Tensor) -> Backend | None:
    """Return what computes the steps of a family: loops on the CPU, a graph elsewhere, None if neither fits."""
    if x.device.type in GRAPH_DEVICES:
        return Graph(family) if type(family) in TRACED and type(family.projection) in TRACED else None
    return family.loop if isinstance(family, LineFamily) and family.can_loop(x) else None
