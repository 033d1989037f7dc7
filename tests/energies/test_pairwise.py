"""The pairwise energy against enumeration of all labellings, and the curvature it gathers while a network trains."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.energies import PairwiseEnergy
from mrfquant.errors import BadInput
from mrfquant.families import Independent
from mrfquant.families.distribution import PairOfLabels
from mrfquant.labelling import Labelling
from mrfquant.pairwise.curvature import damped, output_curvature, second_moments

NETWORKS = {
    "linear": (lambda: nn.Linear(2, 2), (5, 2)),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, (1, 2), groups=2, bias=False, padding=(0, 1)), nn.Flatten()),
        (4, 2, 1, 2),
    ),
}
LEVELS = {2: [-1, 1], 3: [-0.5, 0, 1]}


def _problem(network, d, scale="none"):
    torch.manual_seed(d)
    build, shape = NETWORKS[network]
    model = build().double()
    labelling = Labelling(model, LEVELS[d], scale=scale)
    energy = PairwiseEnergy(interval=1, samples=None)
    energy.attach(labelling)
    functional.cross_entropy(model(torch.randn(shape, dtype=torch.float64)), torch.zeros(shape[0]).long()).backward()
    labelling.collect_gradients()
    (block,) = labelling.blocks
    return energy, block, torch.rand(d, block.m, dtype=torch.float64).softmax(0)


def _distribution(block, u):
    return PairOfLabels(block, lambda: u[1] - u[0]) if block.d == 2 else Independent(block, u)


def _curvature(energy, block):
    """C as one matrix (m, m), by columns."""
    c = torch.diag(energy.diagonal(block))
    for layer in energy.curvatures(block):
        groups, rows, n = *layer.g.shape, layer.a.shape[-1]
        for group, row in itertools.product(range(groups), range(rows)):
            places = layer.read(torch.arange(block.m, dtype=torch.float64))[group, row].long()
            c[places[:, None], places] = layer.g[group, row] * layer.a[group]
            assert len(places) == n
    return c


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("d", LEVELS)
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_expected_energy_equals_enumeration_and_its_gradient_the_derivative(network, d, scale):
    energy, block, u = _problem(network, d, scale)
    block.w.copy_(_distribution(block, u.roll(1, 1)).mean())  # the value is that of any u
    c, q = _curvature(energy, block), block.q[:, None].expand(d, block.m)
    q = q if block.scale is None else q * block.scale
    labellings = torch.tensor(list(itertools.product(range(d), repeat=block.m)))

    def enumerated(p):
        values = q.gather(0, labellings)  # (count, m)
        weight = p.gather(0, labellings).prod(1)
        change = values - block.w
        return weight @ (values @ block.g + (change @ c * change).sum(1) / 2)

    p, leaf = _distribution(block, u), u.clone().requires_grad_()
    torch.testing.assert_close(energy.value(p), enumerated(leaf).detach(), rtol=1e-8, atol=1e-8)
    block.w.copy_(p.mean())  # the gradient is that of the present u
    (derivative,) = torch.autograd.grad(enumerated(leaf), leaf)
    gradient = energy.gradient(p).on_labels(block)
    torch.testing.assert_close(gradient - gradient.mean(0), derivative - derivative.mean(0), rtol=1e-8, atol=1e-8)


def test_curvature_is_that_of_the_batches_seen():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    energy = PairwiseEnergy(interval=2, decay=0.5, damping=0.1, strength=2.0, samples=None)
    energy.attach(labelling := Labelling(model, [-1, 1]))
    batches = torch.randn(5, 8, 3, dtype=torch.float64)
    factors = []
    for x in batches:
        logits = model(x)
        factors.append((second_moments(model, x)[0], output_curvature([model], [logits], logits)[0]))
    (block,) = labelling.blocks
    # Noted are the forwards 0, 2 and 4 of training, each weighing half of the one after it.
    weights = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64) / 1.75
    a = sum(w * factors[k][0] for w, k in zip(weights, (0, 2, 4), strict=True))
    g = sum(w * factors[k][1] for w, k in zip(weights, (0, 2, 4), strict=True))
    (found,) = energy.curvatures(block)
    torch.testing.assert_close(found.a[0], damped(a, 0.1))
    torch.testing.assert_close(found.g[0], 2 * g)
    torch.testing.assert_close(energy.diagonal(block)[6:], 2 * g)  # of the biases


def test_a_compiled_network_gathers_the_same():
    x = torch.randn(8, 3)
    found = []
    for build in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        energy = PairwiseEnergy(interval=2, samples=None)
        energy.attach(labelling := Labelling(model, [-1, 1]))
        forward = build(model)
        for _ in range(3):
            functional.cross_entropy(forward(x), torch.zeros(8).long()).backward()
        found.append(energy.diagonal(labelling.blocks[0]))
    torch.testing.assert_close(found[1], found[0])
    assert found[0].abs().max() > 0


def _gathered(build, temperature=1.0):
    torch.manual_seed(0)
    model = build()
    energy = PairwiseEnergy(interval=1, samples=None)
    energy.temperature = temperature
    energy.attach(labelling := Labelling(model, [-1, 1]))
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(1)))
    return energy.diagonal(labelling.blocks[0])


def test_an_activation_in_place_changes_nothing():
    kept, in_place = (
        _gathered(lambda inplace=inplace: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace), nn.Linear(4, 2)))
        for inplace in (False, True)
    )
    torch.testing.assert_close(in_place, kept)


def test_the_temperature_of_the_loss_is_that_of_its_curvature():
    outside = _gathered(lambda: nn.Linear(3, 2), temperature=5.0)
    inside = _gathered(lambda: nn.Sequential(nn.Linear(3, 2), _Over(5.0)))
    torch.testing.assert_close(outside, inside)


class _Over(nn.Module):
    def __init__(self, divisor):
        super().__init__()
        self.divisor = divisor

    def forward(self, x):
        return x / self.divisor


@pytest.mark.parametrize("samples", [1, None])
def test_outputs_that_are_no_numbers_are_left_to_the_trainer(samples):
    model = nn.Linear(3, 2)
    energy = PairwiseEnergy(interval=1, samples=samples)
    energy.attach(labelling := Labelling(model, [-1, 1]))
    model(torch.full((4, 3), torch.nan))
    assert energy.diagonal(labelling.blocks[0]) is None
    model(torch.randn(4, 3))
    assert energy.diagonal(labelling.blocks[0]).isfinite().all()


def test_evaluation_gathers_nothing():
    model = nn.Linear(3, 2)
    energy = PairwiseEnergy()
    energy.attach(labelling := Labelling(model, [-1, 1]))
    with torch.no_grad():
        model(torch.randn(4, 3))
    model.eval()
    model(torch.randn(4, 3))
    assert energy.diagonal(labelling.blocks[0]) is None


def test_a_network_without_such_layers_is_refused():
    with pytest.raises(BadInput, match="no labelled weight of a Linear or Conv2d"):
        PairwiseEnergy().attach(Labelling(nn.Embedding(4, 2), [-1, 1]))
