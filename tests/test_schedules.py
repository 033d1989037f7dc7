"""Schedules agree with torch's schedulers, which keep state where ours are functions of the iteration."""

import pytest
import torch

from mrfquant.errors import BadSetting
from mrfquant.schedules import Constant, CosineDecay, MultiStepDecay, StepDecay

BUDGET = 50


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Constant(), lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
        (StepDecay(interval=7, scale=0.2), lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.2)),
        (
            MultiStepDecay(milestones=[10, 20, 33], scale=0.5),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [10, 20, 33], 0.5),
        ),
        (CosineDecay(), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, BUDGET)),
        (CosineDecay(final=0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, BUDGET, eta_min=0.1)),
    ],
)
def test_values_are_those_of_torchs_scheduler(ours, theirs):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = theirs(optimizer)
    for k in range(BUDGET):
        assert ours(k, BUDGET) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_warm_up_rises_to_one_and_the_cosine_follows():
    schedule = CosineDecay(warmup=10)
    assert [schedule(k, BUDGET) for k in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert schedule(BUDGET, BUDGET) == pytest.approx(0.0)


@pytest.mark.parametrize("milestones", [[0, 5], [5, 5], [7, 5]])
def test_milestones_must_increase(milestones):
    with pytest.raises(BadSetting, match="increasing whole numbers"):
        MultiStepDecay(milestones=milestones, scale=0.5)
