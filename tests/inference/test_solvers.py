"""What every solver of the package does on a network, beyond its contract (tests/test_contracts.py)."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.energies import FirstOrderTaylor, PairwiseEnergy
from mrfquant.errors import BadInput
from mrfquant.inference import (
    BinaryConnect,
    MeanField,
    MirrorDescent,
    ProximalICM,
    ProximalMeanField,
    ProxQuant,
    Reference,
    SparsemaxPGD,
)
from mrfquant.inference.entropies import TreeEntropy
from mrfquant.labelling import Labelling
from mrfquant.schedules import Geometric, GeometricTo

LEVELS = {2: [-1, 1], 3: [-1, 0, 1], 4: [-2, -1, 1, 2]}
SOLVERS = {
    "pmf": ProximalMeanField,
    "pmf_exact": functools.partial(ProximalMeanField, jacobian="exact"),
    "pmf_straight": functools.partial(ProximalMeanField, jacobian="straight_through"),
    "pmf_number": functools.partial(ProximalMeanField, jacobian=0.25),
    "pmf_no_auxiliary": functools.partial(ProximalMeanField, auxiliary=False, beta=GeometricTo(end=100.0)),
    "pgd": SparsemaxPGD,
    "pgd_no_auxiliary": functools.partial(SparsemaxPGD, auxiliary=False),
    "picm": ProximalICM,
    "md": MirrorDescent,
    "mf": functools.partial(MeanField, beta=GeometricTo(start=20.0, end=200.0), damping=0.97),
    "bc": BinaryConnect,
    "pq": functools.partial(ProxQuant, reg_rate=0.05, epoch=5),
}


def with_curvature(solver, tree=False, **settings):
    """A solver with an energy of its own each time, and the tree entropy if asked for."""

    def build(labelling, optimizer):
        energy = PairwiseEnergy(interval=3, samples=None)
        return solver(labelling, optimizer, energy=energy, entropy=TreeEntropy(0.1) if tree else None, **settings)

    return build


SOLVERS |= {
    "pmf_pairwise": with_curvature(ProximalMeanField),
    "pmf_tree": with_curvature(ProximalMeanField, tree=True),
    "pmf_tree_no_auxiliary": with_curvature(ProximalMeanField, tree=True, auxiliary=False, beta=GeometricTo(end=100.0)),
    "mf_tree": with_curvature(MeanField, tree=True, beta=GeometricTo(start=20.0, end=200.0), damping=0.97),
}
ADAM = functools.partial(torch.optim.Adam, lr=0.02)


class Toy(nn.Module):
    """Two layers with batch norm between them, as the paper's networks are built."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(functional.relu(self.norm(self.first(x))))


def problem(levels, solver, optimizer=ADAM, **settings):
    """A network, its solver and the loss on a fixed batch with learnable classes."""
    torch.manual_seed(0)
    model = Toy()
    inference = solver(Labelling(model, levels, **settings), optimizer)
    inference.budget = 60
    x = torch.randn(96, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    return model, inference, lambda: functional.cross_entropy(model(x), y)


def steps(inference, loss, count):
    losses = []
    for _ in range(count):
        value = loss()
        value.backward()
        inference.step()
        losses.append(value.item())
    return losses


@pytest.fixture(params=SOLVERS)
def solver(request):
    return SOLVERS[request.param]


@pytest.mark.parametrize("d", LEVELS)
def test_the_rounded_network_learns_and_is_on_its_levels(solver, d):
    model, inference, loss = problem(LEVELS[d], solver)
    with inference.rounded():
        before = loss().item()
    steps(inference, loss, 60)
    with inference.rounded():
        after = loss().item()
        for parameter in model.parameters():
            assert set(parameter.unique().tolist()) <= set(map(float, LEVELS[d]))
        inference.labelling.check_on_levels(model.state_dict())
    assert after < 0.7 * before


def test_several_level_sets_scales_and_free_parameters_train_together(solver):
    levels = {"first.*": [-1, 0, 1], "*": [-1, 1]}
    model, inference, loss = problem(levels, solver, exclude=["last.bias"], scale="channel")
    free = model.last.bias.detach().clone()
    losses = steps(inference, loss, 60)
    assert losses[-1] < losses[0]
    assert not torch.equal(model.last.bias, free)
    with inference.rounded():
        inference.labelling.check_on_levels(model.state_dict())
        assert len(model.first.weight[0].unique()) <= 3


def test_flips_count_the_labels_that_changed_since_the_last_look(solver):
    _, inference, loss = problem(LEVELS[3], solver)
    (pair,) = inference.items()
    inference.diagnostics()
    before = inference.labels(*pair).clone()
    steps(inference, loss, 10)
    expected = (inference.labels(*pair) != before).double().mean().item()
    assert inference.diagnostics()["flips"] == pytest.approx(expected)
    assert inference.diagnostics()["flips"] == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clearing_the_networks_gradients_does_no_harm(solver, set_to_none):
    """`zero_grad` of the network or of a loop's own optimizer replaces the gradients that are views of the vector."""
    _, inference, loss = problem({"first.*": [-1, 0, 1], "*": [-1, 1]}, solver, exclude=["last.bias"])
    expected = steps(inference, loss, 10)
    model, inference, loss = problem({"first.*": [-1, 0, 1], "*": [-1, 1]}, solver, exclude=["last.bias"])
    losses = []
    for _ in range(10):
        model.zero_grad(set_to_none)
        losses += steps(inference, loss, 1)
    assert losses == expected


def test_gradients_cleared_or_cut_for_a_part_of_the_network_are_seen():
    model, inference, loss = problem(LEVELS[2], ProximalMeanField)
    loss().backward()
    expected = inference.labelling.collect_gradients()[0].clone()
    inference.labelling.zero_gradient()
    model.last.zero_grad()  # only this layer's views are cut
    loss().backward()
    assert torch.equal(inference.labelling.collect_gradients()[0], expected)
    model.zero_grad()
    assert inference.labelling.collect_gradients()[0].abs().max() == 0


def test_clearing_the_optimizers_gradients_does_no_harm(solver):
    _, inference, loss = problem(LEVELS[2], solver, exclude=["last.bias"])
    expected = steps(inference, loss, 5)
    _, inference, loss = problem(LEVELS[2], solver, exclude=["last.bias"])
    losses = []
    for _ in range(5):
        inference.driver.zero_grad()
        losses += steps(inference, loss, 1)
    assert losses == expected


def replace_a_layer(model):
    model.last = torch.nn.Linear(model.last.in_features, model.last.out_features)


HARMS = {
    "converted": lambda m: m.double().float(),
    "labelled again": lambda m: Labelling(m, [-1, 1]),
    "assigned": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
    "a layer replaced": replace_a_layer,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_network_taken_away_from_its_labelling_is_noticed(harm):
    model, inference, loss = problem(LEVELS[2], ProximalMeanField)
    harm(model)
    loss().backward()
    with pytest.raises(BadInput, match="no part of this labelling any more"):
        inference.step()


def test_a_parameter_replaced_after_training_is_noticed_where_it_is_rounded():
    model, inference, loss = problem(LEVELS[2], ProximalMeanField)
    steps(inference, loss, 3)
    replace_a_layer(model)
    with pytest.raises(BadInput, match="no part of this labelling any more"), inference.rounded():
        pass


@pytest.mark.parametrize(("other", "scale"), [([-3, 5], "none"), ([-1, 1], 2.0)])
def test_a_state_of_other_levels_or_scales_does_not_fit(other, scale):
    _, saved, _ = problem([-1, 1], ProximalMeanField)
    _, inference, _ = problem(other, ProximalMeanField, scale=scale)
    for a, b in ((saved, inference), (inference, saved)):
        with pytest.raises(BadInput, match="does not fit"):
            a.load_state_dict(b.state_dict())


@pytest.mark.parametrize("name", ["mf", "pq"])
def test_what_ends_with_the_run_asks_for_its_length(name):
    _, inference, loss = problem(LEVELS[2], SOLVERS[name])
    inference.budget = None
    with pytest.raises(BadInput, match="set the solver's budget"):
        steps(inference, loss, 2)


@pytest.mark.parametrize("levels", [[0, 1], [1, 3], [0, 1, 2], [-1, 0, 1]])
def test_labels_start_on_every_level(solver, levels):
    _, inference, _ = problem(levels, solver)
    (pair,) = inference.items()
    shares = torch.bincount(inference.labels(*pair), minlength=len(levels)) / len(inference.labelling)
    assert shares.min() > 0.05


def test_an_energy_that_changes_the_gradient_is_obeyed():
    class Doubled(FirstOrderTaylor):
        def gradient(self, p):
            return super().gradient(p).plus(super().gradient(p))

    for levels in LEVELS.values():
        sgd = functools.partial(torch.optim.SGD, lr=0.01)
        plain = problem(levels, ProximalMeanField, sgd)
        doubled = problem(levels, functools.partial(ProximalMeanField, energy=Doubled()), sgd)
        before = plain[1].variables[0].clone()
        for _, inference, loss in (plain, doubled):
            steps(inference, loss, 1)
        moved = [solved[1].variables[0] - before for solved in (plain, doubled)]
        assert torch.allclose(2 * moved[0], moved[1], atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        functools.partial(torch.optim.SGD, lr=0.05, fused=True),
        functools.partial(torch.optim.AdamW, lr=0.02),
        functools.partial(torch.optim.RMSprop, lr=0.01),
        functools.partial(torch.optim.Adagrad, lr=0.05),
        functools.partial(torch.optim.NAdam, lr=0.02),
    ],
)
def test_any_optimizer_drives_the_variables(optimizer):
    _, inference, loss = problem(LEVELS[2], ProximalMeanField, optimizer)
    losses = steps(inference, loss, 40)
    assert losses[-1] < 0.8 * losses[0]


def test_learning_rates_are_scaled_from_what_the_optimizer_was_made_with():
    _, inference, _ = problem(LEVELS[2], ProximalMeanField)
    for factor in (0.5, 0.1):
        inference.scale_learning_rate(factor)
        assert inference.settings()["learning_rate"] == pytest.approx(0.02 * factor)


def test_the_reference_refuses_levels_and_trains_without():
    with pytest.raises(BadInput, match="Reference trains in floating point"):
        problem(LEVELS[2], Reference)
    model, inference, loss = problem(None, Reference)
    losses = steps(inference, loss, 60)
    assert losses[-1] < 0.3 * losses[0]
    with inference.rounded():
        assert len(model.first.weight.unique()) == model.first.weight.numel()
    assert inference.diagnostics() == {}


def test_the_reference_is_the_plain_optimizer_to_the_bit():
    model, inference, loss = problem(None, Reference)
    steps(inference, loss, 10)
    torch.manual_seed(0)
    plain = Toy()
    x = torch.randn(96, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    optimizer = ADAM(plain.parameters())
    for _ in range(10):
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_samples_follow_the_distribution_and_solvers_without_one_refuse():
    _, inference, loss = problem(LEVELS[2], ProximalMeanField)
    steps(inference, loss, 30)
    expected = inference.labelling.labelled.w.clone()
    total = torch.zeros_like(expected)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        with inference.sampled(generator):
            total += inference.labelling.labelled.w
    assert (total / 2000 - expected).abs().max() < 0.12  # five standard deviations
    with pytest.raises(BadInput, match="no distribution"), problem(LEVELS[2], BinaryConnect)[1].sampled():
        pass


def test_layer_entropies_average_to_the_whole():
    _, inference, loss = problem({"first.*": [-1, 0, 1], "*": [-1, 1]}, ProximalMeanField)
    steps(inference, loss, 30)
    per_layer = inference.layer_entropy()
    sizes = {name: last - first for name, (first, last) in inference.labelling.labelled.spans.items()}
    mean = sum(per_layer[name] * sizes[name] for name in sizes) / sum(sizes.values())
    assert mean == pytest.approx(inference.diagnostics()["entropy"], abs=1e-6)


def test_annealing_decides_every_label():
    _, inference, loss = problem(LEVELS[3], functools.partial(ProximalMeanField, beta=Geometric(rho=1.3, interval=1)))
    steps(inference, loss, 60)
    figures = inference.diagnostics()
    assert figures["decided"] > 0.95
    assert figures["entropy"] < 0.1
