"""A solver is an optimizer like any other, and what would go wrong silently is noticed or honoured."""

import copy
import functools
import io
import pickle
import re
import warnings

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.inference import Inference

ADAM = functools.partial(torch.optim.Adam, lr=0.05)
LEVELS = {"2 levels": [-1, 1], "3 levels": [-1, 0, 1]}
every_level_set = pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def make(levels=(-1, 1), solver=mq.ProximalMeanField, model=None, recipe=ADAM, **settings):
    model = model or network()
    return model, solver(mq.Labelling(model, list(levels), which="weights", scale="channel"), recipe, **settings)


def batch(step):
    x = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
    return x, x[:, :3].argmax(1)


def train(model, solver, first=0, last=20):
    for step in range(first, last):
        x, y = batch(step)
        functional.cross_entropy(model(x), y).backward()
        solver.step()
    return solver


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_one_and_its_groups_have_the_networks_parameters():
    model, solver = make()
    assert isinstance(solver, torch.optim.Optimizer)
    assert {id(p) for group in solver.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    with pytest.raises(mq.BadInput, match="those of its labelling"):
        solver.add_param_group({"params": [torch.zeros(1)]})


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    model, solver = make()
    other, expected = make()
    x, y = batch(0)

    def closure():
        solver.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert solver.step(closure).item() > 0
    train(other, expected, 0, 1)
    assert same(weights(model), weights(other))


def test_stepping_the_inner_optimizer_is_refused():
    _, solver = make()
    with pytest.raises(mq.BadInput, match=r"call solver\.step"):
        solver.driver.step()


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=21),
    ],
    ids=["cosine", "one cycle"],
)
def test_schedulers_of_torch_change_what_drives_the_variables(schedule):
    model, solver = make()
    scheduler = schedule(solver)
    rates = []
    for step in range(20):
        train(model, solver, step, step + 1)
        rates.append((solver.driver.param_groups[0]["lr"], solver.driver.param_groups[0]["betas"][0]))
        scheduler.step()
    plain = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.05)
    reference, expected = schedule(plain), []
    for _ in range(20):
        plain.step()
        expected.append((plain.param_groups[0]["lr"], plain.param_groups[0]["betas"][0]))
        reference.step()
    assert rates == expected


def on_plateau(optimizer):
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0)
    step = scheduler.step
    scheduler.step = lambda: step(1.0)
    return scheduler


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=21),
        on_plateau,
    ],
    ids=["steps", "cosine", "one cycle", "plateau"],
)
def test_resumed_with_a_scheduler_it_goes_on_to_the_bit(schedule):
    def trained(model, solver, scheduler, first, last):
        for step in range(first, last):
            train(model, solver, step, step + 1)
            scheduler.step()

    model, solver = make()
    scheduler = schedule(solver)
    trained(model, solver, scheduler, 0, 10)
    states = copy.deepcopy((solver.state_dict(), {k: v for k, v in scheduler.state_dict().items() if k != "step"}))
    trained(model, solver, scheduler, 10, 20)
    other, resumed = make()
    again = schedule(resumed)
    resumed.load_state_dict(states[0])
    again.load_state_dict(states[1])
    trained(other, resumed, again, 10, 20)
    assert resumed.param_groups[0]["lr"] == solver.param_groups[0]["lr"]
    assert same(weights(model), weights(other))


def test_a_solver_is_the_optimizer_and_has_none_to_clip_or_to_schedule_by():
    _, solver = make()
    assert not hasattr(solver, "optimizer")  # frameworks unwrap what has one
    with pytest.raises(AttributeError, match=r"clip by solver\.param_groups, give the solver itself to a scheduler"):
        torch.optim.lr_scheduler.StepLR(solver.optimizer, 5)


def test_gradients_that_are_clipped_are_those_that_are_used():
    sgd = functools.partial(torch.optim.SGD, lr=1.0)
    (model, solver), (other, halved) = make(recipe=sgd), make(recipe=sgd)
    before = [x.clone() for x in solver.variables]
    for network_, optimizer, share in ((model, solver, 1.0), (other, halved, 0.5)):
        functional.cross_entropy(network_(batch(0)[0]), batch(0)[1]).backward()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        assert norm > 0
        torch.nn.utils.clip_grad_norm_(parameters, share * norm.item())
        optimizer.step()
    for x, y, start in zip(solver.variables, halved.variables, before, strict=True):
        torch.testing.assert_close(y - start, (x - start) / 2, rtol=1e-3, atol=1e-6)


def test_a_gradient_scaler_unscales_and_skips_what_is_infinite():
    model, solver = make()
    other, expected = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        x, y = batch(step)
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        scaler.step(solver)
        scaler.update()
    train(other, expected, 0, 5)
    for name, w in weights(model).items():
        torch.testing.assert_close(w, weights(other)[name], rtol=1e-4, atol=1e-5)
    (model[0].weight.sum() * torch.inf).backward()
    before = weights(model)
    scaler.unscale_(solver)
    scaler.step(solver)
    assert same(weights(model), before)


def test_accumulated_gradients_add_up():
    (model, solver), (other, expected) = make(), make()
    x, y = batch(0)
    for part in (slice(0, 16), slice(16, 32)):
        (functional.cross_entropy(model(x[part]), y[part]) / 2).backward()
    solver.step()
    train(other, expected, 0, 1)
    for name, w in weights(model).items():
        torch.testing.assert_close(w, weights(other)[name], rtol=1e-4, atol=1e-5)


@every_level_set
def test_a_copy_goes_on_by_itself_and_leaves_the_original_alone(levels):
    model, solver = make(levels)
    train(model, solver, 0, 10)
    other = copy.deepcopy(solver)
    before = weights(model)
    train(other.labelling.model, other, 10, 20)
    assert same(weights(model), before)
    train(model, solver, 10, 20)
    assert same(weights(model), weights(other.labelling.model))
    with pytest.raises(mq.BadInput):
        other.driver.step()


@every_level_set
def test_its_state_is_saved_by_torch(levels):
    model, solver = make(levels)
    train(model, solver, 0, 10)
    file = io.BytesIO()
    torch.save(solver.state_dict(), file)
    file.seek(0)
    other, loaded = make(levels)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    train(model, solver, 10, 20)
    train(other, loaded, 10, 20)
    assert same(weights(model), weights(other))


@every_level_set
@pytest.mark.parametrize("solver", [mq.ProximalMeanField, mq.BinaryConnect])
def test_finalized_the_network_is_an_ordinary_one_on_its_levels(levels, solver):
    model, solver = make(levels, solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, solver)
        with solver.rounded():
            expected = weights(model)
        assert solver.finalize() is model
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert solver.finalize() is model
    assert same(expected, weights(model))
    solver.labelling.check_on_levels(model.state_dict())
    assert same(state, model.state_dict())
    with solver.rounded():
        assert same(state, model.state_dict())
    assert all(p.grad is None for p in model.parameters())
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == len(list(model.parameters()))
    with pytest.raises(mq.BadInput, match="finalized"):
        train(model, solver, 20, 21)
    network = mq.pack_model(model, solver.labelling)
    assert same(dict(network.state_dict()), model.state_dict())
    torch.export.export(model, (torch.zeros(2, 12),))


def test_a_labelled_network_is_pickled_and_saved_as_any_other():
    model, solver = make()
    train(model, solver, 0, 5)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert same(weights(model), weights(other))
        assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in other.parameters()}
    assert file.tell() < 3 * sum(p.nbytes for p in model.parameters()) + 8000  # the vectors are stored once


@every_level_set
def test_a_network_in_shared_memory_trains_and_is_seen(levels):
    (model, solver), (other, expected) = make(levels), make(levels)
    model.share_memory()
    train(model, solver, 0, 5)
    train(other, expected, 0, 5)
    assert same(weights(model), weights(other))
    assert all(p.is_shared() for p in model.parameters())


def test_safetensors_refuses_views_and_takes_the_finalized_network(tmp_path):
    model, solver = make()
    with pytest.raises(RuntimeError, match="covering the entire storage"):
        safetensors.torch.save_model(model, tmp_path / "views.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.finalize()
    safetensors.torch.save_model(model, tmp_path / "model.safetensors")
    other = network(1)
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    assert same(weights(model), weights(other))


def test_state_dicts_are_aliases_within_rounded():
    model, solver = make()
    with solver.rounded():
        kept = model.state_dict()
        solver.labelling.check_on_levels(kept)
    with pytest.raises(mq.BadInput, match="not on the levels"):
        solver.labelling.check_on_levels(kept)


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.half], ids=["double", "half"])
def test_a_conversion_before_the_first_step_is_noticed(convert):
    model, solver = make()
    convert(model)
    with pytest.raises(mq.BadInput, match="the network was moved, converted"):
        solver.step()


def test_ending_undecided_is_told():
    model, solver = make()
    train(model, solver, 0, 3)
    with pytest.warns(UserWarning, match="of the weights are undecided"):
        solver.finalize()


def test_labels_that_are_nearly_all_the_same_or_undecided_near_the_end_are_told_once():
    model = network(0)
    labelling = mq.Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    solver = mq.MirrorDescent(labelling, ADAM, start="weights", reach=30.0, form="line", beta=mq.Constant(1.0))
    solver.prepare(100)
    solver.iteration = 100
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        train(model, solver, 0, 1)
        solver.iteration = 200
        train(model, solver, 0, 1)
    assert [re.sub(r"[\d.]+", "", str(warning.message))[:40] for warning in told] == [
        "% of the weights are undecided, rounding",
        "% of the weights have the level : levels",
    ]


@pytest.mark.parametrize("steps", [0, 5])
def test_a_state_dict_loaded_beside_the_solver_is_noticed(steps):
    model, solver = make()
    train(model, solver, 0, steps)
    model.load_state_dict(network(1).state_dict())
    if not steps:
        with pytest.raises(mq.BadInput, match="was changed beside its solver"):
            train(model, solver, 0, 1)
    with pytest.raises(mq.BadInput, match=r"was changed beside its solver, as by load_state_dict"), solver.rounded():
        pass


def test_the_best_weights_loaded_at_the_end_need_the_best_state_of_the_solver():
    model, solver = make()
    train(model, solver, 0, 5)
    best = copy.deepcopy((model.state_dict(), solver.state_dict()))  # a checkpoint of a trainer
    with solver.rounded():
        expected = weights(model)
    train(model, solver, 5, 10)
    model.load_state_dict(best[0])
    with pytest.raises(mq.BadInput, match=r"load the solver's own state, too.*optimizer\.pt"):
        solver.finalize()
    solver.load_state_dict(best[1])
    with pytest.warns(UserWarning, match="undecided"):
        solver.finalize()
    assert same(weights(model), expected)


def test_a_step_within_rounded_is_refused_and_one_after_it_is_not():
    model, solver = make()
    with solver.rounded():
        with pytest.raises(mq.BadInput, match="would be lost"):
            train(model, solver, 0, 1)
        with solver.sampled():
            pass
        with pytest.raises(mq.BadInput, match="would be lost"):
            solver.step()
    train(model, solver, 0, 1)


SOLVERS = [mq.ProximalMeanField, mq.MirrorDescent, mq.BinaryConnect, mq.StraightThrough]


@every_level_set
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("learn_scale", [False, True], ids=["", "learned scales"])
def test_the_weights_of_a_frozen_layer_stay_while_beta_grows(levels, solver, learn_scale):
    if learn_scale and solver is mq.StraightThrough:
        return
    beta = {"beta": mq.Geometric(rho=2.0, interval=1)} if solver in SOLVERS[:2] else {}
    model, solver = make(levels, solver, learn_scale=learn_scale, **beta)
    train(model, solver, 0, 5)
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, solver, 5, 15)
    assert torch.equal(weights(model)["0.weight"], before["0.weight"])
    assert not torch.equal(weights(model)["2.weight"], before["2.weight"])


def test_a_layer_frozen_midway_stays_and_goes_on_when_it_is_freed():
    model, solver = make([-1, 0, 1])
    train(model, solver, 0, 5)
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, solver, 5, 10)
    after = weights(model)
    model[0].requires_grad_(True)
    train(model, solver, 10, 15)
    assert torch.equal(solver.labelling.blocks[0].w, solver.labelling.labelled.w)
    assert torch.equal(after["0.bias"], before["0.bias"])
    assert not torch.equal(after["2.weight"], before["2.weight"])
    assert not torch.equal(weights(model)["0.weight"], after["0.weight"])


def test_a_frozen_layers_variables_do_not_move():
    model, solver = make()
    train(model, solver, 0, 5)
    model[0].requires_grad_(False)
    first, last = solver.labelling.labelled.spans["0.weight"]
    before = solver.variables[0][first:last].clone()
    train(model, solver, 5, 10)
    assert torch.equal(solver.variables[0][first:last], before)


def test_a_layer_that_was_frozen_when_it_was_labelled_is_noticed_when_it_is_not_any_more():
    model = network()
    model[0].requires_grad_(False)
    model, solver = make(model=model)
    model[0].requires_grad_(True)
    with pytest.raises(mq.BadInput, match="was frozen when the labelling was built"):
        train(model, solver)


def test_gradients_that_are_no_numbers_are_noticed():
    model, solver = make()
    train(model, solver, 0, 5)
    model[0].weight.grad.fill_(torch.nan)
    with pytest.raises(mq.RunFailed, match="not numbers any more"):
        train(model, solver, 5, 105)


@pytest.mark.parametrize("solver", [mq.ProximalMeanField, mq.BinaryConnect])
def test_gradients_that_are_no_numbers_are_noticed_by_the_answer(solver):
    model, solver = make(solver=solver)
    train(model, solver, 0, 5)
    model[0].weight.grad.fill_(torch.nan)
    train(model, solver, 5, 7)
    with pytest.raises(mq.RunFailed, match="not numbers any more at step 7"), solver.rounded():
        pass
    with pytest.raises(mq.RunFailed, match="not numbers any more"):
        solver.finalize()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_not_labelled(value):
    model = network()
    model[2].weight.data[0, 0] = value
    with pytest.raises(mq.BadInput, match=r"2\.weight has weights that are infinite or no numbers"):
        mq.Labelling(model, [-1, 1], which="weights")
    mq.Labelling(model, [-1, 1], which="weights", exclude=["2.*"])


def test_the_summary_lists_what_is_labelled_and_what_is_not():
    model = network()
    model[2].bias.requires_grad_(False)
    text = mq.Labelling(model, [-1, 0, 1], which="weights").summary()
    rows = [line.split() for line in text.splitlines()]
    assert ["0.weight", "16x12", "-1", "0", "1", "1", "2"] in rows
    assert ["0.bias", "16", "free", "32"] in rows
    assert ["2.bias", "3", "frozen", "32"] in rows
    assert text.splitlines()[-1].startswith("240 weights on levels, 0.1 kB")


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.lstm, self.conv, self.head = nn.LSTM(4, 4), nn.Conv1d(4, 4, 3), nn.Linear(4, 7)


def test_layers_are_selected_by_kind():
    selected = set(mq.Labelling(Everything(), [-1, 1], which="weights").labelled.spans)
    assert selected == {
        *("attention.in_proj_weight", "attention.out_proj.weight"),
        *("lstm.weight_ih_l0", "lstm.weight_hh_l0", "conv.weight", "head.weight"),
    }
    linear = set(mq.Labelling(Everything(), [-1, 1], which=mq.weights_of(nn.Linear)).labelled.spans)
    assert linear == {"attention.out_proj.weight", "head.weight"}
    inner = set(mq.Labelling(Everything(), [-1, 1], which="inner weights").labelled.spans)
    assert inner == selected - {"attention.in_proj_weight", "head.weight"}


@every_level_set
@pytest.mark.parametrize("solver", [mq.ProximalMeanField, mq.SparsemaxPGD, mq.MirrorDescent, mq.MeanField])
def test_started_at_the_weights_the_relaxed_network_is_the_float_one_where_levels_reach(levels, solver):
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.2, 0.2)
    before = weights(model)
    labelling = mq.Labelling(model, levels, which="weights", scale=0.25)
    solver(labelling, ADAM, start="weights")
    for name, w in weights(model).items():
        torch.testing.assert_close(w, before[name], atol=0.003, rtol=0)  # a label keeps a probability of 0.01 at least


@every_level_set
def test_started_at_the_weights_latent_ones_are_these(levels):
    _, solver = make(levels, mq.BinaryConnect, start="weights")
    fresh = network()
    for name in solver.labelling.labelled.spans:
        scale = solver.labelling.labelled.view(name, solver.labelling.scale)
        found = solver.labelling.labelled.view(name, solver.variables[0]) * scale
        wanted = fresh.get_parameter(name).clamp(-scale, scale)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_states_of_other_solvers_and_of_optimizers_are_refused():
    """Their tensors have the same shapes, and mean something else."""

    def solver_of(kind, **settings):
        model = nn.Linear(4, 3)
        labelling = mq.Labelling(model, [-1, 0, 1], scale="channel")
        return kind(labelling, functools.partial(torch.optim.Adam, lr=0.01), start="weights", **settings)

    state = solver_of(mq.MirrorDescent).state_dict()
    solver_of(mq.MirrorDescent).load_state_dict(state)
    for other in (solver_of(mq.ProximalMeanField), solver_of(mq.MirrorDescent, form="line")):
        with pytest.raises(mq.BadInput, match="or another kind of solver"):
            other.load_state_dict(state)
    with pytest.raises(mq.BadInput, match="perhaps that of an optimizer"):
        solver_of(mq.MirrorDescent).load_state_dict(torch.optim.Adam(nn.Linear(4, 3).parameters()).state_dict())


def test_an_optimizer_that_needs_a_closure_is_refused():
    with pytest.raises(mq.BadInput, match="LBFGS needs a closure"):
        mq.ProximalMeanField(mq.Labelling(nn.Linear(4, 3), [-1, 1]), torch.optim.LBFGS)


def test_variables_that_a_solver_starts_in_the_weights_memory_are_not_overwritten_by_weights():
    class Hard(Inference):
        method = "HARD"

        def start(self, block, draw):
            return block.w

        def update(self, block, x):
            return block.g

        def write(self, block, x):
            block.w.copy_(x.sign())

        def labels(self, block, x):
            return (x > 0).int()

    model = nn.Linear(4, 3)
    before = model.weight.detach().flatten().clone()
    solver = Hard(mq.Labelling(model, [-1, 1], which="weights"), functools.partial(torch.optim.SGD, lr=0.01))
    assert torch.equal(solver.variables[0], before)
    assert torch.equal(model.weight.flatten(), before.sign())
