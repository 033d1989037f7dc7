"""Deciding labels together: what is decided stays, the energy falls, and training can go on from it."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import stand_in
from mrfquant.models import LeNet300
from mrfquant.rounding import LayerProblem, solvers
from mrfquant.rounding.solvers import RoundICM, RoundMeanField, RoundTree
from mrfquant.training import Trainer

SOLVERS = {"icm": RoundICM, "mean_field": RoundMeanField, "tree": RoundTree}
ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def _problem(d, n=7, rows=5):
    generator = torch.Generator().manual_seed(d)
    x = torch.randn(40, n, generator=generator, dtype=torch.float64) + 0.7  # means couple, as after a ReLU
    w = torch.randn(n, rows, generator=generator, dtype=torch.float64)
    free = torch.rand(n, rows, generator=generator) < 0.6
    scale = (torch.rand(1, rows, generator=generator, dtype=torch.float64) + 0.5).expand(n, rows).contiguous()
    levels = torch.linspace(-1, 1, d, dtype=torch.float64)
    problem = LayerProblem(w, x.T @ x / 40, levels, scale, torch.zeros(n, dtype=torch.int64), free=free)
    return problem, problem.nearest(w)


def _best(problem, start):
    """The least energy of each row over the labels that its free variables may take."""
    best = torch.full((start.shape[1],), torch.inf, dtype=torch.float64)
    for labels in itertools.product(range(len(problem.levels)), repeat=problem.n):
        chosen = torch.where(problem.free, torch.tensor(labels)[:, None], start)
        best = torch.minimum(best, problem.energy(problem.values(chosen)))
    return best


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("compiled", [True, False])
def test_solvers_find_the_best_labels_of_the_free_variables(monkeypatch, name, d, compiled):
    if compiled:
        pytest.importorskip("numba")
    monkeypatch.setattr(solvers, "MIN_COMPILED_SIZE", 0 if compiled else 10**9)
    problem, start = _problem(d)
    labels, fitted = SOLVERS[name]().solve(problem, (start, problem))
    assert torch.equal(labels[~problem.free], start[~problem.free])
    assert (labels != start).any()
    assert torch.equal(fitted.scale, problem.scale)
    torch.testing.assert_close(problem.energy(problem.values(labels)), _best(problem, start))


def test_without_free_variables_nothing_changes():
    problem, start = _problem(3)
    problem.free.fill_(False)
    for solver in SOLVERS.values():
        assert torch.equal(solver().solve(problem, (start, problem))[0], start)


def _trained(levels=(-1, 1), scale="none", solver=mq.ProximalMeanField, steps=30):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = functional.avg_pool2d(torch.randn(200, 1, 8, 8), 3, 1, 1)[..., 1:7, 1:7]
    y = (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0.3).long()
    made = solver(mq.Labelling(model, list(levels), scale=scale), ADAM)
    for _ in range(steps):
        functional.cross_entropy(model(x), y).backward()
        made.step()
    return made, model, x


def _outputs(model, x):
    with torch.no_grad():
        return model.eval()(x)


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1)])
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_decided_together_the_network_stays_closer_to_the_relaxed_one(levels, scale):
    solver, model, x = _trained(levels, scale)
    relaxed, weights = _outputs(model, x), solver.labelling.labelled.w.clone()
    with solver.rounded():
        alone = (_outputs(model, x) - relaxed).square().mean()
    jointly = mq.Jointly(x.split(50))
    labels = jointly(solver)
    assert torch.equal(solver.labelling.labelled.w, weights)
    for found, decided, item in zip(labels, solver.decided(), solver.items(), strict=True):
        assert torch.equal(found[decided], solver.labels(*item)[decided])
    assert [layer.name for layer in jointly.layers] == ["0.weight", "4.weight"]
    assert all(layer.relative <= 1 for layer in jointly.layers)
    solver.finalize(lambda _: labels)
    together = (_outputs(model, x) - relaxed).square().mean()
    assert together < 0.7 * alone
    solver.labelling.check_on_levels(model.state_dict())


def test_decided_weights_change_only_where_asked_for():
    solver, model, x = _trained()
    labels = solver.labels(*next(solver.items()))
    assert torch.equal(mq.Jointly(x.split(50), threshold=0.5)(solver)[0], labels)  # each has a likelier label
    assert not torch.equal(mq.Jointly(x.split(50), "all", threshold=0.5)(solver)[0], labels)
    assert model.training


@pytest.mark.parametrize("levels", [(-1, 1), (-1, 0, 1)])
def test_training_goes_on_from_adopted_labels(levels):
    solver, model, x = _trained(levels)
    labels, before = mq.Jointly(x.split(50), weights="all")(solver), [v.clone() for v in solver.variables]
    same = [solver.labels(*item) == chosen for item, chosen in zip(solver.items(), labels, strict=True)]
    assert not all(part.all() for part in same)
    solver.adopt(labels)
    for (block, variables), chosen, kept, old in zip(solver.items(), labels, same, before, strict=True):
        assert torch.equal(solver.labels(block, variables), chosen)
        assert torch.equal(variables[kept], old[kept])
    functional.cross_entropy(model(x), torch.zeros(200).long()).backward()
    solver.step()


def test_batches_may_come_with_the_call():
    (first, _, x), (solver, _, _) = _trained(), _trained()
    assert torch.equal(mq.Jointly(x.split(50))(first)[0], mq.Jointly()(solver, x.split(50))[0])
    with pytest.raises(mq.BadInput, match="no batch to calibrate with"):
        mq.Jointly()(solver)


def test_solvers_that_take_every_weight_anew_are_refused():
    with pytest.raises(mq.BadInput, match="cannot go on from labels by gptq"):
        mq.Jointly([], rounding=mq.Rounding("gptq"))


def test_without_a_distribution_nothing_is_undecided():
    solver, _, x = _trained(solver=mq.BinaryConnect)
    with pytest.raises(mq.BadInput, match="BinaryConnect has no distribution over labels"):
        mq.Jointly(x.split(50))(solver)


def test_the_hook_decides_before_the_network_is_evaluated():
    torch.manual_seed(0)
    data, chosen, evaluated = stand_in("mnist"), [], []
    model = LeNet300(data.shape, data.num_classes, width=0.1)
    solver = mq.ProximalMeanField(mq.Labelling(model, [-1, 1]), ADAM)

    def opposite(inference, batches):
        assert [len(batch) for batch in batches] == [50, 50]
        chosen.extend(1 - inference.labels(*item) for item in inference.items())
        return chosen

    class Look(mq.Hook):
        def evaluated(self, trainer):
            evaluated.extend(block.nearest(block.w) for block in solver.labelling.blocks)

    hooks = [mq.Decide(opposite, every=4, examples=100, batch_size=50), Look()]
    Trainer(model, data, solver, iterations=4, eval_interval=4, batch_size=32, hooks=hooks).run()
    assert len(chosen) == 1
    assert torch.equal(evaluated[0], chosen[0])
