"""Families: what the labels of a block may be together, and how they are relaxed.

A family is an exponential family over the labels of a block. Its natural parameters x are a solver's variables, its
mean parameters the expected weights that the network computes with. Five come with the package, all but the last of
independent labels:

pair    two levels, one number a weight: u = ((1 - t) / 2, (1 + t) / 2) for the mean t from -1 to 1.
line    ordered levels, one number a weight: natural parameters on a line in R^d (`mrfquant.projections.Line`).
planes  one number a level, as in the paper: x and u have shape (d, m), plane λ has label λ of every weight.
wells   levels for trained weights, one number a weight: the weight itself at first, labels that narrow around levels.
chain   paths through a trellis, one number a weight: u = exp(-beta / 2 |x - levels of the path|²), normalised.

A family is combined with a projection (softmax, sparsemax, hardmax), which maps natural parameters to u. The choice of
both is made here, once for each block, when a solver is built; solvers and energies do not ask for it again.
"""

from mrfquant.families.base import Family, Form, Gradient
from mrfquant.families.chain import Chain
from mrfquant.families.choice import Backend, backend_of, family_of
from mrfquant.families.distribution import Distribution, Independent
from mrfquant.families.line import LineFamily, PairFamily
from mrfquant.families.planes import PlanesFamily
from mrfquant.families.wells import Wells

__all__ = [
    "Backend",
    "Chain",
    "Distribution",
    "Family",
    "Form",
    "Gradient",
    "Independent",
    "LineFamily",
    "PairFamily",
    "PlanesFamily",
    "Wells",
    "backend_of",
    "family_of",
]
