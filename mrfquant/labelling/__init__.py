"""The parameters of a network as variables of a labelling problem."""

from mrfquant.labelling.block import Block
from mrfquant.labelling.flat import FlatParameters
from mrfquant.labelling.labelling import Labelling
from mrfquant.labelling.levels import LevelSet, uniform
from mrfquant.labelling.selection import weights_of
from mrfquant.labelling.trellis import Trellis

__all__ = ["Block", "FlatParameters", "Labelling", "LevelSet", "Trellis", "uniform", "weights_of"]
