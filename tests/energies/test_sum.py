"""Sums of energies: value and gradient add up, weights follow schedules, short cuts stay where all parts have them."""

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.energies import Energy, FirstOrderTaylor, PairwiseEnergy, SumOf
from mrfquant.errors import BadSetting
from mrfquant.families import Independent
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Block, Labelling, LevelSet
from mrfquant.schedules import CosineDecay, LinearTo


class Squares(Energy):
    """Half the sum of squares of the probabilities; counts its steps and notes what it was told."""

    def __init__(self, asks=False):
        self.steps, self.asks, self.iterations, self.seen = 0, asks, [], None

    def begin_step(self, iteration, distributions):
        self.steps += 1
        self.iterations.append(iteration)
        if self.asks:
            self.seen = distributions()

    def value(self, p):
        return p.probabilities().square().sum() / 2

    def gradient(self, p):
        return mq.Gradient(marginals=p.probabilities().clone())

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def distribution(levels=(-1, 0, 1), m=5):
    random = torch.Generator().manual_seed(0)
    w, g = torch.randn(2, m, generator=random, dtype=torch.float64)
    u = torch.rand(len(levels), m, generator=random, dtype=torch.float64).softmax(0)
    return Independent(Block(LevelSet(levels), 0, w, g), u)


def test_value_and_gradient_are_the_weighted_sums():
    p = distribution()
    b, u = p.block, p.probabilities()
    both = SumOf([FirstOrderTaylor(), Squares()], [2.0, 0.5])
    expected = 2 * (b.g @ (b.q @ u)) + 0.25 * (u * u).sum()
    torch.testing.assert_close(both.value(p), expected)
    torch.testing.assert_close(both.gradient(p).on_labels(b), 2 * b.q[:, None] * b.g + 0.5 * u)


def test_values_are_named_without_weights():
    p = distribution()
    values = SumOf([Squares(), FirstOrderTaylor(), SumOf([Squares(), Squares()])], [7.0, 1.0, 2.0]).values(p)
    assert list(values) == ["Squares", "FirstOrderTaylor", "Squares 2", "Squares 3"]
    assert values["Squares"] == values["Squares 3"] == p.probabilities().square().sum() / 2


def test_one_energy_of_weight_one_keeps_the_gradient_on_the_weights_itself():
    p = distribution()
    assert SumOf([FirstOrderTaylor()]).gradient(p).weights is p.block.g
    both = SumOf([FirstOrderTaylor(), FirstOrderTaylor()], [1, 2]).gradient(p)
    torch.testing.assert_close(both.weights, 3 * p.block.g)
    assert both.costs is both.marginals is None


def test_weights_follow_the_iteration_and_the_budget():
    both = SumOf([FirstOrderTaylor(), SumOf([Squares()], [CosineDecay()])], [1.0, LinearTo(end=3.0, start=1.0)])
    both.prepare(10, 1.0)
    p = distribution()
    b, u = p.block, p.probabilities()
    for iteration, expected in ((0, 1.0 * 1.0), (5, 2.0 * 0.5), (10, 3.0 * 0.0)):
        both.begin_step(iteration, lambda: [p])
        torch.testing.assert_close(both.gradient(p).on_labels(b), b.q[:, None] * b.g + expected * u)


def test_a_solver_tells_the_parts_what_it_knows():
    labelling = Labelling(nn.Linear(3, 2), [-1, 1])
    parts = [FirstOrderTaylor(), Squares(asks=True), Squares(asks=True)]
    solver = ProximalMeanField(labelling, lambda p: torch.optim.Adam(p), energy=SumOf(parts))
    solver.prepare(20, temperature=3.0)
    for _ in range(2):
        labelling.model(torch.randn(4, 3)).sum().backward()
        solver.step()
    assert {(part.budget, part.temperature) for part in parts} == {(20, 3.0)}
    assert parts[1].iterations == parts[2].iterations == [0, 1]
    assert [p.probabilities().shape for p in parts[1].seen] == [(2, 8)]
    assert parts[1].seen is parts[2].seen


def test_distributions_are_computed_once_and_only_if_a_part_asks():
    made = []

    def distributions():
        made.append(distribution())
        return made

    SumOf([Squares(), Squares()]).begin_step(0, distributions)
    assert made == []
    SumOf([Squares(asks=True), Squares(asks=True)]).begin_step(0, distributions)
    assert len(made) == 1


def test_states_of_the_parts_are_saved_in_their_places():
    assert SumOf([FirstOrderTaylor()]).state_dict() == {}
    whole, fresh = (SumOf([FirstOrderTaylor(), Squares()]) for _ in range(2))
    whole.begin_step(0, lambda: [])
    fresh.load_state_dict(whole.state_dict())
    assert fresh.energies[1].steps == 1


def test_an_energy_is_found_among_the_parts():
    pairwise = PairwiseEnergy()
    assert SumOf([FirstOrderTaylor(), SumOf([pairwise])]).find(PairwiseEnergy) is pairwise
    assert SumOf([FirstOrderTaylor()]).find(PairwiseEnergy) is None
    assert pairwise.find(PairwiseEnergy) is pairwise


@pytest.mark.parametrize(
    ("energies", "weights", "message"),
    [([], None, "one energy"), ([Squares()], [1, 2], "1 of them"), ([Squares()], [-1.0], "at least 0")],
)
def test_what_makes_no_sense_is_refused(energies, weights, message):
    with pytest.raises(BadSetting, match=message):
        SumOf(energies, weights)
