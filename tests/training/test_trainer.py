"""The loop by itself, without a folder or gin: stopping, going on, keeping the best."""

import copy
import functools
from dataclasses import replace

import pytest
import torch

import mrfquant.training.trainer
from mrfquant.data import Pairs, Split, characters, stand_in
from mrfquant.energies import CodeLength, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.errors import BadInput, Diverged
from mrfquant.inference import MirrorDescent, ProximalMeanField, Reference, SparsemaxPGD
from mrfquant.labelling import Labelling
from mrfquant.metric import LOSS, TOP1
from mrfquant.models import GPT, LeNet300
from mrfquant.objectives import CrossEntropy, NextToken, Regression
from mrfquant.schedules import CosineDecay, GeometricTo, LinearTo
from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.training import Collector, Interrupted, Trainer, evaluate

ADAM = functools.partial(torch.optim.Adam, lr=0.01)


class Records(Collector):
    def __init__(self):
        self.records = []

    def record(self, iteration, values):
        self.records.append((iteration, {k: v for k, v in values.items() if k != "steps_per_second"}))


def make(solver, levels, labelling=Labelling, **settings):
    torch.manual_seed(0)
    data = stand_in("mnist")
    model = LeNet300(data.shape, data.num_classes, width=0.1)
    settings = {"iterations": 24, "eval_interval": 8, "log_interval": 4, "batch_size": 32} | settings
    records = Records()
    inference = solver(labelling(model, levels), ADAM)
    return Trainer(model, data, inference, learning_rate=CosineDecay(), **settings), records


def with_priors(labelling, optimizer):
    energy = SumOf([FirstOrderTaylor(), LabelPrior({0: -1.0}), CodeLength(interval=3)], [1.0, 0.01, LinearTo(end=0.1)])
    return ProximalMeanField(labelling, optimizer, energy=energy)


SOLVERS = {
    "pmf, priors": (with_priors, [-1, 0, 1]),
    "pmf, 3 levels": (functools.partial(ProximalMeanField, beta=GeometricTo(end=50.0)), [-1, 0, 1]),
    "pmf, 2 levels": (functools.partial(ProximalMeanField, beta=LinearTo(end=50.0)), [-1, 1]),
    "pgd, 4 levels": (functools.partial(SparsemaxPGD, beta=LinearTo(end=50.0)), [-2, -1, 1, 2]),
    "md, 3 levels": (functools.partial(MirrorDescent, beta=GeometricTo(end=50.0)), [-1, 0, 1]),
    "ref": (Reference, None),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("stop", [3, 8, 13])
def test_stopped_anywhere_it_goes_on_to_the_bit(name, stop):
    """Also with schedules that end with the run, which a new trainer must know the length of while it loads."""
    whole, expected = make(*SOLVERS[name])
    whole_result = whole.run(collectors=[expected])
    first, before = make(*SOLVERS[name])
    with pytest.raises(Interrupted):
        first.run(collectors=[before], should_stop=lambda: first.iteration == stop)
    state = copy.deepcopy(first.state_dict())
    best = first._best_state
    second, after = make(*SOLVERS[name])
    second.load_state_dict(state)
    second._best_state = best
    assert second.run(collectors=[after]) == whole_result
    assert before.records + after.records == expected.records


def test_the_values_of_energies_are_recorded_with_the_loss():
    trainer, records = make(with_priors, [-1, 0, 1])
    trainer.run(collectors=[records])
    assert [iteration for iteration, _ in records.records] == [4, 8, 12, 16, 20, 24]
    for _, values in records.records:
        found = {name for name in values if name.startswith("energy/")}
        assert found == {"energy/FirstOrderTaylor", "energy/LabelPrior", "energy/CodeLength"}
        assert -len(trainer.inference.labelling) <= values["energy/LabelPrior"] <= 0


def make_text(**settings):
    torch.manual_seed(0)
    data = characters("letters", "the quick brown fox jumps over the lazy dog. " * 30, context=8)
    model = GPT(data.shape, data.outputs, layers=1, width=8, heads=1, dropout=0.1)
    inference = ProximalMeanField(Labelling(model, [-1, 0, 1], which="weights"), ADAM, beta=GeometricTo(end=50.0))
    settings = {"iterations": 20, "eval_interval": 8, "log_interval": 4, "batch_size": 8} | settings
    return Trainer(model, data, inference, objective=NextToken(), clip=1.0, **settings), Records()


def test_text_with_dropout_goes_on_to_the_bit_and_the_lowest_loss_is_the_best():
    whole, expected = make_text()
    result = whole.run(collectors=[expected])
    losses = {iteration: values["val_loss"] for iteration, values in expected.records if "val_loss" in values}
    assert losses[result["best_iteration"]] == result["best_val_loss"] == min(losses.values())
    first, before = make_text()
    with pytest.raises(Interrupted):
        first.run(collectors=[before], should_stop=lambda: first.iteration == 13)
    state = copy.deepcopy(first.state_dict())
    second, after = make_text()
    second.load_state_dict(state)
    second._best_state = first._best_state
    assert second.run(collectors=[after]) == result
    assert before.records + after.records == expected.records


def test_the_gradient_is_clipped_before_it_is_used():
    trainer, _ = make(Reference, None, iterations=1, clip=1e-3)
    before = copy.deepcopy(trainer.model)
    images, labels = next(make(Reference, None)[0].batches)
    seen = []  # gradients: Adam's first step would hide their size
    step = trainer.inference.take_step
    trainer.inference.take_step = lambda: (seen.extend(p.grad.clone() for p in trainer.model.parameters()), step())
    trainer.run()
    loss = torch.nn.functional.cross_entropy(before(images), labels)
    expected = torch.autograd.grad(loss, list(before.parameters()))
    norm = torch.cat([g.flatten() for g in expected]).norm()
    for found, whole in zip(seen, expected, strict=True):
        torch.testing.assert_close(found, whole * 1e-3 / norm, rtol=1e-3, atol=1e-9)


def test_the_best_model_is_kept_not_the_last():
    trainer, recorded = make(*SOLVERS["pmf, 2 levels"])
    result = trainer.run(collectors=[recorded])
    validated = {iteration: values["val_top1"] for iteration, values in recorded.records if "val_top1" in values}
    assert result["best_val_top1"] == max(validated.values())
    assert validated[result["best_iteration"]] == result["best_val_top1"]
    trainer.inference.labelling.check_on_levels(trainer.model.state_dict())


@pytest.mark.parametrize("metric", [TOP1, LOSS])
@pytest.mark.parametrize("none", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_beats_nothing_and_any_number_beats_it(metric, none):
    assert not metric.better(none, None)
    assert not metric.better(none, 1.0)
    assert metric.better(1.0, none)
    assert not metric.better(none, none)


def test_a_validation_figure_that_is_not_a_number_is_never_the_best(tmp_path):
    trainer, _ = make(*SOLVERS["pmf, 2 levels"])
    validation = trainer._validation

    def broken_at_first(share, others=True):
        found = validation(share, others)
        return [f | {"top1": float("nan")} for f in found] if trainer.iteration == 8 else found

    trainer._validation = broken_at_first
    result = trainer.run(Checkpoints(tmp_path))
    assert result["best_iteration"] > 8
    assert result["best_val_top1"] >= 0


@pytest.mark.parametrize(
    ("split", "told"), [("val", "on validation was a number"), ("test", "on the test data is nan")]
)
def test_a_value_in_the_data_that_is_not_a_number_ends_the_run_in_a_sentence(split, told, tmp_path):
    torch.manual_seed(0)
    splits = {name: (torch.randn(20, 3), torch.randn(20, 1)) for name in ("train", "val", "test")}
    splits[split][0][3] = torch.nan
    model = torch.nn.Linear(3, 1)
    settings = {"iterations": 4, "eval_interval": 2, "batch_size": 5, "objective": Regression()}
    trainer = Trainer(model, Pairs("table", **splits), Reference(Labelling(model, None), ADAM), **settings)
    with pytest.raises(Diverged, match=told):
        trainer.run(Checkpoints(tmp_path))


@pytest.mark.parametrize("name", ["pmf, 3 levels", "pmf, 2 levels", "ref"])
@pytest.mark.parametrize("at", [16, 24])
def test_a_gradient_that_is_not_a_number_at_a_checkpoint_is_not_saved(name, at, tmp_path):
    """The newest checkpoint is the one before, from which the run goes on."""
    trainer, _ = make(*SOLVERS[name])
    loss, weight = trainer.objective.training_loss, next(trainer.model.parameters())

    def broken(outputs, targets, inputs):
        right = loss(outputs, targets, inputs)
        return right + (0 * weight).sum().sqrt() if trainer.iteration == at - 1 else right  # its gradient is 0 * inf

    trainer.objective.training_loss = broken
    with pytest.raises(Diverged, match=f"not numbers any more at step {at}"):
        trainer.run(Checkpoints(tmp_path))
    state = Checkpoints(tmp_path).newest(print)
    assert state["iteration"] == at - 8
    again, _ = make(*SOLVERS[name])
    again.load_state_dict(state)
    assert again.run(Checkpoints(tmp_path))["test_top1"] >= 0


@pytest.mark.parametrize("kept", ["in a folder", "in memory"])
def test_the_best_model_has_the_scales_of_its_time(kept, tmp_path):
    """Scales that are learned go on after the best iteration, the first one here."""
    solver, levels = SOLVERS["pmf, 2 levels"]
    learning = functools.partial(solver, learn_scale=True)
    trainer, _ = make(learning, levels, labelling=functools.partial(Labelling, scale="channel"))
    scales, validation = [], trainer._validation

    def worse_and_worse(share, others=True):
        scales.append(trainer.inference.labelling.scale_of_runs.clone())
        return [figures | {"top1": -float(trainer.iteration)} for figures in validation(share, others)]

    trainer._validation = worse_and_worse
    result = trainer.run(Checkpoints(tmp_path) if kept == "in a folder" else None)
    assert result["best_iteration"] == 8
    assert not torch.equal(scales[0], scales[-1])
    trainer.inference.labelling.check_on_levels(trainer.model.state_dict(), scales[0])


def test_a_solver_that_leaves_the_levels_is_not_reported_as_quantized():
    class Leaky(ProximalMeanField):
        def rounded(self):
            from contextlib import nullcontext

            return nullcontext()  # forgets to round

    trainer, _ = make(Leaky, [-1, 1])
    with pytest.raises(BadInput, match="not on the levels"):
        trainer.run()


def test_the_loss_is_of_smoothed_targets_and_logits_over_the_temperature():
    smoothing, temperature = 0.2, 5.0
    trainer, records = make(
        Reference, None, iterations=1, objective=CrossEntropy(label_smoothing=smoothing, temperature=temperature)
    )
    network = copy.deepcopy(trainer.model)
    images, labels = next(make(Reference, None)[0].batches)
    log_p = (network(images) / temperature).log_softmax(1)
    chosen = log_p.gather(1, labels[:, None])[:, 0]
    expected = -((1 - smoothing) * chosen + smoothing * log_p.mean(1)).mean()
    trainer.run(collectors=[records])
    ((_, values),) = records.records
    assert values["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert trainer.inference.energy.temperature == temperature  # its curvature is that of this loss


def test_of_a_large_split_the_relaxed_figure_is_the_rounded_one_plus_the_difference_on_a_part(monkeypatch):
    monkeypatch.setattr(mrfquant.training.trainer, "LARGE", 1)
    monkeypatch.setattr(mrfquant.training.evaluation, "CPU_BATCH", 10)
    trainer, _ = make(functools.partial(ProximalMeanField, beta=GeometricTo(end=2.0)), [-1, 1])
    for _ in range(8):
        trainer._step()
    val = trainer.dataset.val
    part = torch.arange(len(val)) // 10 % 5 == 0
    data = replace(trainer.dataset, val=Split(val.images[part], val.labels[part]))
    relaxed = evaluate(trainer.model, data, "val")["top1"]
    with trainer.inference.rounded():
        rounded, all_rounded = (evaluate(trainer.model, d, "val")["top1"] for d in (data, trainer.dataset))
    assert len({relaxed, rounded, all_rounded}) == 3
    found = trainer._validate()
    assert found["val_top1"] == pytest.approx(all_rounded)
    assert found["relaxed_val_top1"] == pytest.approx(all_rounded + relaxed - rounded)


@pytest.mark.parametrize("fast", [False, True])
def test_auto_is_bfloat16_where_the_device_has_instructions_for_it(fast, monkeypatch):
    monkeypatch.setattr(mrfquant.training.trainer, "computes_bfloat16", lambda device: fast)
    assert make(Reference, None, precision="auto")[0].low is fast
    assert not make(Reference, None)[0].low
