"""The tree entropy: softmax without couplings, the marginals and covariances of the tree with them."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.energies import FirstOrderTaylor, PairwiseEnergy
from mrfquant.errors import BadInput
from mrfquant.inference import ProximalMeanField
from mrfquant.inference.entropies import TreeEntropy
from mrfquant.labelling import Labelling
from mrfquant.projections import Line, Softmax

LEVELS = {2: [-1, 1], 3: [-1, 0, 1]}
BETA = 1.7


def _block(d, strength=3.0, scale="none"):
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False).double()
    labelling = Labelling(model, LEVELS[d], scale=scale)
    energy = PairwiseEnergy(samples=None, strength=strength)
    energy.attach(labelling)
    x = torch.randn(6, 3, dtype=torch.float64)
    functional.cross_entropy(model(x), torch.zeros(6).long()).backward()
    (block,) = labelling.blocks
    aux = torch.randn(6, dtype=torch.float64) if d == 2 else torch.randn(d, 6, dtype=torch.float64)
    return block, energy, aux


def _project(projection, block, aux):
    return projection.mean(aux, _line(block), BETA) if block.d == 2 else projection.planes(aux, BETA)


def _planes(block, u):
    return torch.stack([1 - u, 1 + u]) / 2 if block.d == 2 else u


def _line(block):
    return Line(block.q, 0.0)


def _truth(block, energy, aux, strength):
    """u (d, m) by enumeration of each row."""
    (layer,) = energy.curvatures(block)
    (tree,) = layer.trees
    planes = torch.stack([-aux, aux]) if block.d == 2 else aux
    scale = torch.ones(block.m, dtype=torch.float64) if block.scale is None else block.scale
    u = torch.zeros(block.d, block.m, dtype=torch.float64)
    for row in range(2):
        weights = {}
        for labels in itertools.product(range(block.d), repeat=3):
            w = [block.q[label] * scale[3 * row + j] for j, label in enumerate(labels)]
            own = sum(planes[label, 3 * row + j] for j, label in enumerate(labels))
            pairs = sum(layer.a[0][j, p] * w[j] * w[p] for j, p in tree.edges)
            weights[labels] = (BETA * (own - strength * layer.g[0, row] * pairs)).exp()
        total = sum(weights.values())
        for labels, weight in weights.items():
            for j, label in enumerate(labels):
                u[label, 3 * row + j] += weight / total
    return u


@pytest.mark.parametrize("d", LEVELS)
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_marginals_equal_enumeration(d, scale):
    block, energy, aux = _block(d, scale=scale)
    found = _project(TreeEntropy(2.0).projection(block, Softmax(), energy), block, aux)
    torch.testing.assert_close(_planes(block, found), _truth(block, energy, aux, 2.0), rtol=1e-8, atol=1e-10)
    assert not torch.allclose(found, _project(Softmax(), block, aux), atol=1e-3)  # the couplings do something


@pytest.mark.parametrize("levels", [[-1, 1], [-0.5, 0.5], [0, 1]])
@pytest.mark.parametrize(("scale", "strength"), [("none", 50.0), ("channel", 1000.0)])
def test_compiled_and_plain_marginals_of_a_layer_agree(levels, scale, strength):
    torch.manual_seed(0)
    model, x = nn.Linear(40, 30), torch.randn(50, 40)
    labelling = Labelling(model, levels, scale=scale)
    energy = PairwiseEnergy(samples=None)
    energy.attach(labelling)
    functional.cross_entropy(model(x), torch.arange(50) % 30).backward()
    (block,) = labelling.blocks
    projection = TreeEntropy(strength).projection(block, Softmax(), energy)
    aux = torch.randn(block.m)
    planes = Softmax().planes(torch.stack([-aux, aux]), BETA)
    expected = projection.planes(torch.stack([-aux, aux]), BETA)
    torch.testing.assert_close(
        projection.mean(aux, _line(block), BETA), expected[1] - expected[0], rtol=1e-3, atol=1e-4
    )
    assert (expected - planes).abs().max() > 0.01


@pytest.mark.parametrize("d", LEVELS)
def test_without_couplings_it_is_softmax(d):
    block, energy, aux = _block(d, strength=0.0)
    for entropy in (TreeEntropy(1.0), TreeEntropy(0.0)):
        found = _project(entropy.projection(block, Softmax(), energy), block, aux)
        torch.testing.assert_close(found, _project(Softmax(), block, aux), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("d", LEVELS)
def test_the_exact_product_is_the_derivative(d):
    block, energy, aux = _block(d)
    projection = TreeEntropy().projection(block, Softmax("exact"), energy)
    g = torch.randn_like(aux)
    step = 1e-6
    numeric = torch.empty_like(aux)
    for place in itertools.product(*map(range, aux.shape)):
        ends = []
        for sign in (1, -1):
            moved = aux.clone()
            moved[place] += sign * step
            ends.append((g * _project(projection, block, moved)).sum())
        numeric[place] = (ends[0] - ends[1]) / (2 * step)
    u = _project(projection, block, aux)
    if block.d == 2:
        found = projection.mean_vjp(u, g.clone(), BETA, aux, _line(block))
    else:
        found = projection.planes_vjp(u, g.clone(), BETA, aux)
    # A pair's ã stands for (-ã, ã) and its δ for half a difference, so its product is half of the derivative.
    torch.testing.assert_close(found, numeric / 2 if block.d == 2 else numeric, rtol=1e-6, atol=1e-8)


def test_it_needs_couplings():
    model = nn.Linear(3, 2)
    with pytest.raises(BadInput, match="needs the couplings of a PairwiseEnergy, the energy is FirstOrderTaylor"):
        ProximalMeanField(
            Labelling(model, [-1, 1]),
            functools.partial(torch.optim.SGD, lr=0.1),
            energy=FirstOrderTaylor(),
            entropy=TreeEntropy(),
        )
