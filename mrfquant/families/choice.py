"""The one place where a block gets its family."""

from __future__ import annotations

from mrfquant.families.base import Family, Form
from mrfquant.families.line import LineFamily, PairFamily
from mrfquant.families.planes import PlanesFamily
from mrfquant.labelling import Block
from mrfquant.projections import Projection


def family_of(block: Block, projection: Projection, form: Form, spacing: float) -> Family:
    """Return the family of a block: the one its level set names, or one of the three for independent labels.

    Args:
        block: whose level set may name a class as `family`.
        projection: what the family is combined with.
        form: of the variables of three levels and more; two levels have a number each in any case.
        spacing: of the levels on a line.
    """
    if (own := getattr(block.levels, "family", None)) is not None:
        return own(block, projection)
    if block.d == 2:
        return PairFamily(block, projection)
    return PlanesFamily(block, projection) if form == "planes" else LineFamily(block, projection, spacing)
