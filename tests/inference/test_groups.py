"""Groups of parameters have settings of their own, and matrices can be driven in their shapes."""

import copy
import functools
import io
import itertools

import gin
import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.models import LeNet300
from mrfquant.training.experiment import Experiment

ADAMW = functools.partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1)
SGD = functools.partial(torch.optim.SGD, lr=0.5)
LEVELS = {"2 levels": [-1, 1], "3 levels": [-1, 0, 1]}
SOLVERS = [mq.ProximalMeanField, mq.BinaryConnect]
GROUPS = {"2.*": {"lr": 0.01}, "norms and biases": {"weight_decay": 0.0}}
every_level_set = pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 3))


def make(levels=(-1, 1), solver=mq.ProximalMeanField, recipe=ADAMW, groups=GROUPS, **settings):
    model = network()
    labelling = mq.Labelling(model, levels, which="weights", scale="channel")
    torch.manual_seed(1)
    return model, solver(labelling, recipe, groups=groups, **settings)


def train(model, solver, first=0, last=10):
    for step in range(first, last):
        x = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
        functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        solver.step()


def names(model, group):
    known = {id(p): name for name, p in model.named_parameters()}
    return [known[id(p)] for p in group["params"]]


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(one, other):
    for name, w in weights(one).items():
        torch.testing.assert_close(w, other.get_parameter(name).detach(), rtol=0, atol=0, msg=name)


# --- groups


@every_level_set
def test_groups_hold_the_parameters_of_the_first_key_that_fits_with_their_settings(levels):
    model, solver = make(levels, learn_scale=True)
    groups = solver.param_groups
    assert [set(names(model, group)) for group in groups] == [
        {"2.weight", "2.bias"},
        {"0.bias", "1.weight", "1.bias"},
        {"0.weight"},
        set(),  # learned scales
    ]
    settings = [(group["lr"], group["weight_decay"]) for group in groups]
    assert settings == [(0.01, 0.1), (0.05, 0.0), (0.05, 0.1), (0.05, 0.0)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("labelled", {"conv.weight", "head.weight"}),
        ("norms and biases", {"conv.bias", "norm.weight", "norm.bias", "head.bias"}),
        ("weights", {"conv.weight", "head.weight"}),
        ("everything", {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}),
        ("head.?ias", {"head.bias"}),
        (mq.weights_of(nn.Conv2d), {"conv.weight"}),
    ],
    ids=["labelled", "norms", "weights", "everything", "pattern", "function"],
)
def test_keys_are_presets_patterns_and_functions(key, expected):
    model = Net()
    solver = mq.BinaryConnect(mq.Labelling(model, [-1, 1], which="weights"), ADAMW, groups={key: {"lr": 0.2}})
    assert set(names(model, solver.param_groups[0])) == expected
    assert solver.param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize("groups", [{"3.*": {"lr": 1.0}}, {"*": {"lr": 1.0}, "labelled": {"lr": 2.0}}])
def test_keys_that_decide_nothing_are_refused(groups):
    with pytest.raises(mq.BadInput, match="matches no parameter"):
        make(groups=groups)


def test_settings_that_the_optimizer_does_not_have_are_refused():
    with pytest.raises(mq.BadInput, match="sets 'learning_rate', the optimizer has"):
        make(groups={"0.*": {"learning_rate": 0.1}})
    with pytest.raises(mq.BadInput, match="names 'nowhere'"):
        make(groups={lambda model: ["nowhere"]: {"lr": 0.1}})


def test_without_groups_the_recipe_gets_one_tensor_for_each_level_set_and_one_for_the_rest():
    given = []
    _, solver = make(groups=None, recipe=lambda tensors: given.append(tensors) or ADAMW(tensors))
    assert [id(tensor) for tensor in given[0]] == [id(solver.variables[0]), id(solver.labelling.free.w)]


@every_level_set
@pytest.mark.parametrize("solver", SOLVERS)
def test_groups_with_the_same_settings_train_as_none_do(levels, solver):
    """Another layout of the same step; start='weights' since a random start depends on the order."""
    (model, grouped), (other, plain) = (
        make(levels, solver, groups=groups, start="weights", learn_scale=True) for groups in ({"2.*": {}}, None)
    )
    train(model, grouped)
    train(other, plain)
    for name, w in weights(model).items():
        torch.testing.assert_close(w, weights(other)[name], rtol=1e-4, atol=1e-5, msg=name)


@every_level_set
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_rate_of_0_leaves_a_group_alone(levels, solver):
    groups = {"0.*": {"lr": 0.0, "weight_decay": 0.0}}
    model, solver = make(levels, solver, groups=groups)
    before = [x.clone() for x in solver.variables], weights(model)
    train(model, solver)
    first, second = (block.start for block in solver.labelling.blocks)
    assert solver.labelling.names_in(solver.labelling.blocks[0]) == ["0.weight"]
    assert first < second
    assert torch.equal(solver.variables[0], before[0][0])
    assert not torch.equal(solver.variables[1], before[0][1])
    assert torch.equal(model[0].bias, before[1]["0.bias"])
    assert not torch.equal(model[2].bias, before[1]["2.bias"])


def test_weight_decay_pulls_on_the_variables_of_its_group_alone():
    model, solver = make(recipe=functools.partial(torch.optim.SGD, lr=0.5), groups={"0.*": {"weight_decay": 0.2}})
    before = [x.clone() for x in solver.variables]
    model(torch.zeros(1, 12)).sum().mul(0.0).backward()  # no gradient: decay is all that moves
    solver.step()
    torch.testing.assert_close(solver.variables[0], before[0] * (1 - 0.5 * 0.2))
    assert torch.equal(solver.variables[1], before[1])


def test_schedulers_act_on_each_group():
    model, solver = make()
    scheduler = torch.optim.lr_scheduler.LambdaLR(solver, [lambda k: 1.0, lambda k: 0.5**k, lambda k: 0.1**k])
    train(model, solver, 0, 1)
    scheduler.step()
    train(model, solver, 1, 2)
    assert [group["lr"] for group in solver.driver.param_groups] == pytest.approx([0.01, 0.025, 0.005])
    solver.scale_learning_rate(2.0)
    assert [group["lr"] for group in solver.param_groups] == pytest.approx([0.02, 0.1, 0.1])


def test_optimizers_may_count_in_their_groups():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + 1

    model, solver = make(recipe=functools.partial(Counting, lr=0.1), groups={})
    train(model, solver, last=3)
    assert solver.driver.param_groups[0]["steps"] == 3


def test_the_proximal_step_of_a_group_has_its_rate():
    model = network()
    labelling = mq.Labelling(model, [-1, 1], which="weights")
    solver = mq.ProxQuant(labelling, SGD, groups={"2.*": {"lr": 0.25}})
    assert [solver.learning_rate(block) for block in labelling.blocks] == [0.25, 0.5]
    with pytest.raises(mq.BadInput, match="one learning rate for each level set"):
        mq.ProxQuant(mq.Labelling(network(), [-1, 1]), mq.ByShape(SGD, functools.partial(torch.optim.SGD, lr=0.1)))


RECIPES = {
    "one optimizer": ADAMW,
    "by shape": mq.ByShape(SGD, ADAMW),
}


@every_level_set
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_copies_and_saved_states_go_on_as_the_original(levels, recipe):
    model, solver = make(levels, recipe=recipe, learn_scale=True)
    train(model, solver, 0, 5)
    copied = copy.deepcopy(solver)
    file = io.BytesIO()
    torch.save(solver.state_dict(), file)
    file.seek(0)
    other, loaded = make(levels, recipe=recipe, learn_scale=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for network_, optimizer in ((model, solver), (copied.labelling.model, copied), (other, loaded)):
        train(network_, optimizer, 5, 10)
    assert_same(model, other)
    assert_same(model, copied.labelling.model)
    with pytest.raises(mq.BadInput):
        copied.driver.step()


def test_a_state_of_other_groups_does_not_fit():
    _, grouped = make(groups={"1.bias": {"lr": 0.1}})
    for groups in ({"1.weight": {"lr": 0.1}}, None):  # of the same size, in another order
        _, other = make(groups=groups)
        for one, two in ((grouped, other), (other, grouped)):
            with pytest.raises(mq.BadInput, match="does not fit"):
                one.load_state_dict(two.state_dict())


@pytest.mark.parametrize(("one", "two"), list(itertools.permutations(RECIPES, 2)))
def test_a_state_of_another_optimizer_does_not_fit(one, two):
    model, solver = make(recipe=RECIPES[one])
    train(model, solver, 0, 2)
    _, other = make(recipe=RECIPES[two])
    with pytest.raises(mq.BadInput, match="does not fit: it is of another optimizer"):
        other.load_state_dict(solver.state_dict())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_frozen_layers_stay(recipe):
    model, solver = make([-1, 0, 1], recipe=recipe)
    train(model, solver, 0, 3)
    model[2].requires_grad_(False)
    before = [x.clone() for x in solver.variables], model[2].bias.detach().clone()
    train(model, solver, 3, 6)
    assert torch.equal(solver.variables[0], before[0][0])
    assert not torch.equal(solver.variables[1], before[0][1])
    assert torch.equal(model[2].bias, before[1])


def test_groups_from_gin(tmp_path):
    gin.parse_config(
        """
        Experiment.dataset = @digits
        Experiment.model = @LeNet300
        Experiment.optimizer = @AdamW
        Experiment.inference = @BinaryConnect
        Experiment.groups = {"norms and biases": {"weight_decay": 0.0}}
        Labelling.levels = [-1, 1]
        Labelling.which = 'weights'
        AdamW.weight_decay = 0.1
        """
    )
    solver = Experiment(device=torch.device("cpu"), data_root=tmp_path).inference
    assert [group["weight_decay"] for group in solver.param_groups] == [0.0, 0.1]


# --- matrices in their shapes


def matrix(view):
    """(rows, rest), a copy with the columns in the order of memory, as of a convolution that is channels last."""
    ordered = view.permute(0, 2, 3, 1) if view.dim() == 4 and view.stride(1) == 1 else view
    return ordered.reshape(len(view), -1).clone() if view.dim() > 1 else view.clone()


@needs_muon
@every_level_set
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_a_step_is_muons_on_each_matrix_in_its_shape(levels, memory):
    muon, sgd = functools.partial(torch.optim.Muon, lr=0.1), functools.partial(torch.optim.SGD, lr=1.0)
    torch.manual_seed(0)
    model = Net().to(memory_format=memory)
    model.turned = nn.Parameter(torch.randn(3, 5).t())
    solver = mq.ProximalMeanField(mq.Labelling(model, levels), mq.ByShape(muon, sgd))
    (x,), labelled = solver.variables, solver.labelling.labelled
    x.grad = torch.randn_like(x)
    planes, expected = x.view(-1, len(labelled)), []
    for values, gradient in zip(planes, x.grad.view(planes.shape), strict=True):
        for name in labelled.spans:
            by_hand = matrix(labelled.view(name, values))
            by_hand.grad = matrix(labelled.view(name, gradient))
            (muon if by_hand.dim() == 2 else sgd)([by_hand]).step()
            expected.append(by_hand)
    solver.move_variables()
    found = [matrix(labelled.view(name, values)) for values in planes for name in labelled.spans]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@every_level_set
def test_two_optimizers_that_are_the_same_do_what_one_does(levels):
    model, apart = make(levels, recipe=mq.ByShape(ADAMW, ADAMW), learn_scale=True)
    other, plain = make(levels, recipe=ADAMW, learn_scale=True)
    train(model, apart)
    train(other, plain)
    for name, w in weights(model).items():
        torch.testing.assert_close(w, weights(other)[name], rtol=1e-4, atol=1e-5, msg=name)


def test_schedulers_reach_both():
    model, solver = make(groups=None, recipe=mq.ByShape(SGD, ADAMW))
    scheduler = torch.optim.lr_scheduler.LambdaLR(solver, lambda k: 0.5**k)
    train(model, solver, 0, 1)
    scheduler.step()
    train(model, solver, 1, 2)
    assert [group["lr"] for part in solver.driver.parts for group in part.param_groups] == [0.25, 0.025]
    with pytest.raises(ValueError, match="momentum or beta1"):
        torch.optim.lr_scheduler.OneCycleLR(solver, max_lr=0.1, total_steps=10)


def test_a_network_of_matrices_alone_learns_its_scales():
    model = nn.Linear(4, 3, bias=False)
    labelling = mq.Labelling(model, [-1, 1], scale="channel")
    solver = mq.ProximalMeanField(labelling, mq.ByShape(SGD, ADAMW), learn_scale=True)
    before = labelling.scale.clone()
    model(torch.ones(1, 4)).sum().backward()
    solver.step()
    assert not torch.equal(labelling.scale, before)


def test_matrices_hidden_in_a_function_are_refused():
    with pytest.raises(mq.BadInput, match="hand it over itself"):
        make(recipe=lambda p: mq.ByShape(SGD, ADAMW)(p))


def test_two_optimizers_from_gin(tmp_path):
    gin.parse_config(
        """
        Experiment.dataset = @digits
        Experiment.model = @LeNet300
        Experiment.optimizer = @ByShape()
        Experiment.inference = @ProximalMeanField
        Labelling.levels = [-1, 1]
        ByShape.matrices = @SGD
        ByShape.rest = @AdamW
        SGD.lr = 0.25
        """
    )
    experiment = Experiment(device=torch.device("cpu"), data_root=tmp_path)
    assert [group["lr"] for group in experiment.inference.param_groups] == [0.25, 0.001]


class Peer:
    """A recipe as a quantizing optimizer brings it: what it says about itself stands in its class."""

    method = "PEER"
    by_shape = True

    def __call__(self, parameters):
        self.shapes = [tuple(p.shape) for p in parameters]
        return torch.optim.SGD(parameters, lr=0.1)


def test_an_experiment_hands_on_what_a_recipe_says_about_itself(tmp_path):
    peer = Peer()
    experiment = Experiment(
        dataset=digits, model=LeNet300, optimizer=peer, device=torch.device("cpu"), data_root=tmp_path
    )
    assert experiment.identity()["method"] == "PEER"
    assert (300, 784) in peer.shapes  # matrices of rows
    assert (300,) in peer.shapes


@needs_muon
def test_the_digits_are_learned_with_muon(on_digits):
    model = on_digits.network()
    recipe = mq.ByShape(
        functools.partial(torch.optim.Muon, lr=0.05, weight_decay=0.0), functools.partial(torch.optim.AdamW, lr=0.01)
    )
    solver = mq.ProximalMeanField(mq.Labelling(model, [-1, 1], which="weights", scale="channel"), recipe)
    on_digits.train(model, solver, 60)
    assert on_digits.accuracy(solver.finalize()) > 0.93
