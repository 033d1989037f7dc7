"""Sums of energies: value and gradient add up, weights follow schedules, short cuts stay where all parts have them."""

import pytest
import torch
from torch import nn

from mrfquant.energies import Energy, FirstOrderTaylor, PairwiseEnergy, SumOf
from mrfquant.errors import BadSetting
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Block, Labelling, LevelSet
from mrfquant.schedules import CosineDecay, LinearTo


class Squares(Energy):
    """Half the sum of squares of u's numbers; counts its steps and notes what it was told."""

    def __init__(self):
        self.steps, self.asked = 0, False

    def begin_step(self, us):
        self.steps += 1
        self.asked = [u.shape for _, u in us] if self.asked else self.asked

    def value(self, block, u):
        return (u * u).sum() / 2

    def gradient(self, block, u):
        return u.clone()

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def block(levels=(-1, 0, 1), m=5):
    w, g = torch.randn(2, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Block(LevelSet(levels), 0, w, g)


def test_value_and_gradient_are_the_weighted_sums():
    b, u = block(), torch.rand(3, 5, dtype=torch.float64)
    both = SumOf([FirstOrderTaylor(), Squares()], [2.0, 0.5])
    expected = 2 * (b.g @ (b.q @ u)) + 0.25 * (u * u).sum()
    torch.testing.assert_close(both.value(b, u), expected)
    torch.testing.assert_close(both.gradient(b, u), 2 * b.q[:, None] * b.g + 0.5 * u)
    assert both.weight_gradient(b) is None  # squares are no function of the weights


def test_values_are_named_without_weights():
    b, u = block(), torch.rand(3, 5, dtype=torch.float64)
    values = SumOf([Squares(), FirstOrderTaylor(), SumOf([Squares(), Squares()])], [7.0, 1.0, 2.0]).values(b, u)
    assert list(values) == ["Squares", "FirstOrderTaylor", "Squares 2", "Squares 3"]
    assert values["Squares"] == values["Squares 3"] == (u * u).sum() / 2


def test_one_energy_of_weight_one_keeps_the_gradient_on_the_weights_itself():
    b = block()
    assert SumOf([FirstOrderTaylor()]).weight_gradient(b) is b.g
    torch.testing.assert_close(SumOf([FirstOrderTaylor(), FirstOrderTaylor()], [1, 2]).weight_gradient(b), 3 * b.g)


def test_weights_follow_the_iteration_and_the_budget():
    both = SumOf([FirstOrderTaylor(), SumOf([Squares()], [CosineDecay()])], [1.0, LinearTo(end=3.0, start=1.0)])
    both.prepare(10, 1.0)
    b, u = block(), torch.rand(3, 5, dtype=torch.float64)
    for iteration, expected in ((0, 1.0 * 1.0), (5, 2.0 * 0.5), (10, 3.0 * 0.0)):
        both.iteration = iteration
        both.begin_step([])
        torch.testing.assert_close(both.gradient(b, u), b.q[:, None] * b.g + expected * u)


def test_a_solver_tells_the_parts_what_it_knows():
    labelling = Labelling(nn.Linear(3, 2), [-1, 1])
    parts = [FirstOrderTaylor(), Squares(), Squares()]
    parts[1].asked = parts[2].asked = True
    solver = ProximalMeanField(labelling, lambda p: torch.optim.Adam(p), energy=SumOf(parts))
    solver.prepare(20, temperature=3.0)
    for _ in range(2):
        labelling.model(torch.randn(4, 3)).sum().backward()
        solver.step()
    assert {(part.iteration, part.budget, part.temperature) for part in parts} == {(1, 20, 3.0)}
    assert parts[1].asked == parts[2].asked == [(8,)]


def test_u_is_computed_once_and_only_if_a_part_asks():
    made = []

    def us():
        for number in range(2):
            made.append(number)
            yield block(), torch.zeros(3, 5)

    SumOf([Squares(), Squares()]).begin_step(us())
    assert made == []
    parts = [Squares(), Squares()]
    parts[0].asked = parts[1].asked = True
    SumOf(parts).begin_step(us())
    assert made == [0, 1]


def test_states_of_the_parts_are_saved_in_their_places():
    assert SumOf([FirstOrderTaylor()]).state_dict() == {}
    whole, fresh = (SumOf([FirstOrderTaylor(), Squares()]) for _ in range(2))
    whole.begin_step([])
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
