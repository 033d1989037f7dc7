"""The parameters of a network as variables of a labelling problem."""

from mrfquant.labelling.flat import FlatParameters

__all__ = ["FlatParameters"]
