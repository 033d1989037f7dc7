"""Maps from R^d onto the simplex, one variable at a time, with their vector-Jacobian products in closed form.

A map P takes auxiliary variables ũ and an inverse temperature beta to u = P(beta ũ). The variables come in one of three
forms:

planes  ũ and u of shape (d, m): plane λ holds label λ of every variable, so that neighbours in memory are
        neighbouring variables and every operation runs along them.
pair    for d = 2, ã and t of shape (m,), where ũ = (-ã, ã) and u = ((1 - t) / 2, (1 + t) / 2). What the two planes
        have in common does not change u, so half of the numbers and of the work suffice.
line    for ordered labels, a and t of shape (m,): ũ is a point of a line in R^d (see `Line`), and t is the mean of the
        levels under u, from -1 for the lowest to 1 for the highest. For two labels it is the pair form.

A gradient with respect to u has the same form: planes g (d, m), or for a pair the half difference δ = (g_2 - g_1) / 2;
on the line δ is the gradient with respect to t.
A constant added to all labels of a variable does not change a problem on the simplex, so g is centred over the labels
before it meets a Jacobian; for the true Jacobians that makes no difference, for the approximate ones it makes both
forms agree: a step along the pair's product moves ã as a step along the planes' product moves (ũ_2 - ũ_1) / 2.
"""

from mrfquant.projections.base import Projection
from mrfquant.projections.line import Line
from mrfquant.projections.softmax import Jacobian, Softmax
from mrfquant.projections.vertices import Hardmax, Sparsemax

__all__ = ["Hardmax", "Jacobian", "Line", "Projection", "Softmax", "Sparsemax"]
