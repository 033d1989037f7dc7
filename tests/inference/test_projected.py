"""ProjectedInference with any projection: the named solvers are cases of it, and two methods make a projection."""

import functools

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.inference import ProjectedInference, ProximalMeanField, SparsemaxPGD
from mrfquant.inference.entropies import TreeEntropy
from mrfquant.labelling import Labelling
from mrfquant.projections import Projection, Softmax, Sparsemax
from mrfquant.schedules import Geometric
from mrfquant.testing.contract import Quadratic

LEVELS = {2: [-1, 1], "2 elsewhere": [0.3, 0.5], 3: [-1, 0, 1]}


class TwoMethods(Projection):
    """A projection of which only the planes are known."""

    def __init__(self, whole):
        self.planes_of, self.product_of = whole.planes, whole.planes_vjp

    def planes(self, aux, beta, out=None):
        return self.planes_of(aux, beta, out)

    def planes_vjp(self, u, g, beta, aux):
        return self.product_of(u, g, beta, aux)


def weights_after(solver, levels, steps=30):
    torch.manual_seed(0)
    model = Quadratic(levels)
    inference = solver(Labelling(model, levels), functools.partial(torch.optim.SGD, lr=0.3), beta=Geometric(1.05, 2))
    for _ in range(steps):
        model.loss().backward()
        inference.step()
    return inference.labelling.labelled.w.clone()


@pytest.mark.parametrize("levels", LEVELS.values(), ids=map(str, LEVELS))
@pytest.mark.parametrize(
    ("named", "projection"),
    [(functools.partial(ProximalMeanField, jacobian="exact"), Softmax("exact")), (SparsemaxPGD, Sparsemax())],
    ids=["softmax", "sparsemax"],
)
def test_the_named_solvers_are_cases_of_it(named, projection, levels):
    expected = weights_after(named, levels)
    assert torch.equal(weights_after(functools.partial(ProjectedInference, projection=projection), levels), expected)
    planes_only = functools.partial(ProjectedInference, projection=TwoMethods(projection))
    torch.testing.assert_close(weights_after(planes_only, levels), expected, rtol=0, atol=1e-9)


def test_an_entropy_goes_with_softmax_only():
    labelling = Labelling(Quadratic([-1, 1]), [-1, 1])
    with pytest.raises(BadInput, match="the projection is Sparsemax: set projection = @Softmax"):
        ProjectedInference(labelling, torch.optim.Adam, Sparsemax(), entropy=TreeEntropy())


@pytest.mark.parametrize("levels", LEVELS.values(), ids=map(str, LEVELS))
@pytest.mark.parametrize("projection", [Softmax(), Sparsemax()], ids=["softmax", "sparsemax"])
def test_a_projection_in_two_methods_can_start_at_the_weights_of_a_network(projection, levels):
    model = Quadratic([-1, 1])
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(levels[0], levels[-1])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ProjectedInference(Labelling(model, levels), torch.optim.Adam, TwoMethods(projection), start="weights")
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, before[name], rtol=0, atol=0.01 * (levels[-1] - levels[0]))
