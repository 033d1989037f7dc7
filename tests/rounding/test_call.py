"""round_network on networks and batches of every kind, and what it promises when something goes wrong."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mrfquant as mq
from mrfquant.rounding import LayerSolver
from mrfquant.rounding.solvers import RoundGPTQ, RoundNearest


def quiet(model, batches, **settings):
    return mq.round_network(model, batches, **{"solver": "gptq", "progress": False, **settings})


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Named(nn.Module):
    """Takes keywords, and gives its layers keywords."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, *, image, unused=None):
        return self.two(input=functional.relu(self.one(input=image)))


X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "batches",
    [
        [X[:20], X[20:]],
        ((X[:20], 0), (X[20:], 1)),
        DataLoader(TensorDataset(X, torch.zeros(40)), batch_size=20),
        (part for part in X.split(20)),
        [[X[:20]], [X[20:]]],
    ],
    ids=["tensors", "pairs", "loader", "generator", "lists"],
)
def test_batches_of_any_kind_give_the_same_answer(batches):
    expected = quiet(mlp(), [X[:20], X[20:]])
    found = quiet(mlp(), batches)
    for name, labels in expected.labels.items():
        assert torch.equal(labels, found.labels[name])


def test_dicts_keywords_and_forwards_of_ones_own():
    torch.manual_seed(0)
    model = Named()
    again, plain = copy.deepcopy(model), copy.deepcopy(model)
    dicts = [{"image": X[:20], "unused": 3}, {"image": X[20:]}]
    found = quiet(model, dicts)
    own = quiet(again, [X[:20], X[20:]], forward=lambda m, b: m(image=b))
    chain = quiet(nn.Sequential(plain.one, nn.ReLU(), plain.two), [X[:20], X[20:]])
    for a, b, c in zip(found.labels.values(), own.labels.values(), chain.labels.values(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_one_tensor_is_one_batch():
    assert torch.equal(quiet(mlp(), X).labels["2.weight"], quiet(mlp(), [X]).labels["2.weight"])


def test_levels_are_bits_or_lists_and_differ_by_name():
    result = quiet(mlp(), [X], bits=[-1, 0, 1], overrides={"2": 1})
    assert [len(result.levels[name]) for name in ("0.weight", "2.weight")] == [3, 2]
    for row in result.model[0].weight:
        assert len(row.unique()) <= 3
    assert all(len(row.unique()) <= 2 for row in result.model[2].weight)
    assert [line.split()[:5] for line in str(result).splitlines()[1:3]] == [
        ["0.weight", "5", "x", "6", "2"],
        ["2.weight", "3", "x", "5", "1"],
    ]


def test_excluded_layers_stay_as_they_are():
    model = mlp()
    before = model[0].weight.detach().clone()
    result = quiet(model, [X], exclude=["0"])
    assert list(result.labels) == ["2.weight"]
    assert torch.equal(before, model[0].weight)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"exclude": ["head.*"]},
            r"'head\.\*' matches no weight that could be rounded; there are 0\.weight, 2\.weight",
        ),
        ({"overrides": {"head": 3}}, "'head' matches no weight"),
        ({"exclude": "0"}, r"expected a list of patterns, as \['0'\]"),
        ({"exclude": ["*"]}, "there is no weight to round"),
        ({"bits": 9}, "uniform.bits = 9"),
        ({"bits": [1.0]}, "two or more different finite numbers"),
        ({"solver": "magic"}, "expected one of nearest, gptq, icm"),
        ({"damping": 2.0}, r"Rounding\.damping"),
    ],
)
def test_bad_settings_are_one_sentence(settings, said):
    with pytest.raises(mq.BadInput, match=said):
        quiet(mlp(), [X], **settings)


def test_no_batches_and_layers_that_none_reaches_are_told():
    with pytest.raises(mq.BadInput, match="there is no batch to calibrate with"):
        quiet(mlp(), [])
    model = Named()
    model.spare = nn.Linear(2, 2)
    with pytest.raises(mq.BadInput, match=r"no batch reaches spare\.weight"):
        quiet(model, [{"image": X}])


def test_a_layer_used_several_times_is_rounded_for_all_its_uses():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.layer(x), self.layer(torch.tanh(x) + 1)

    class Look(RoundNearest):
        def solve(self, problem):
            self.a = problem.a
            return super().solve(problem)

    x, look = torch.randn(30, 4), Look()
    quiet(Again(), [x], solver=look, damping=1e-9)
    both = torch.cat([x, torch.tanh(x) + 1])
    torch.testing.assert_close(look.a, both.T @ both / 60)


class Experts(nn.Module):
    """A router sends every row to one of the experts."""

    def __init__(self, count=3):
        super().__init__()
        self.into, self.router = nn.Linear(4, 4), nn.Linear(4, count)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        x = torch.tanh(self.into(x))
        expert, out = self.router(x).argmax(1), x.clone()
        for number, layer in enumerate(self.experts):
            rows = (expert == number).nonzero()[:, 0]
            if len(rows):
                out[rows] = layer(x[rows])
        return out


def test_experts_that_some_inputs_reach_are_rounded_for_those():
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(200, 4)
    trained = copy.deepcopy(model)
    result = quiet(model, [x[:100], x[100:103], x[103:]], bits=4)
    assert len(result.labels) == 5
    with torch.no_grad():
        error = (model(x) - trained(x)).square().mean() / trained(x).var()
    assert error < 0.1


def test_attention_to_something_else_has_three_kinds_of_inputs():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x * 2 + 1, key_padding_mask=None, value=torch.tanh(x), need_weights=False)[0]

    class Look(RoundGPTQ):
        found = []

        def solve(self, problem):
            self.found.append(problem.a)
            return super().solve(problem)

    torch.manual_seed(0)
    model, x, look = Cross(), torch.randn(40, 3, 8), Look()
    result = quiet(model, [x], solver=look, damping=1e-9)
    assert list(result.labels) == ["attention.in_proj_weight", "attention.out_proj.weight"]
    rows = x.flatten(0, 1)
    for a, inputs in zip(look.found[:3], (rows, rows * 2 + 1, torch.tanh(rows)), strict=True):
        torch.testing.assert_close(a, inputs.T @ inputs / len(rows), rtol=1e-4, atol=1e-4)


def test_tied_weights_are_rounded_once_or_left_and_told():
    torch.manual_seed(0)
    twins = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    twins[2].weight = twins[0].weight
    result = quiet(twins, [X])
    assert list(result.labels) == ["0.weight"]
    assert result.notes == ["0.weight is also 2.weight: rounded once, for all its uses"]
    assert result.layers[0].energy > 0

    language = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    language[2].weight = language[0].weight
    result = quiet(language, [torch.randint(9, (20, 5))])
    assert list(result.labels) == ["1.weight"]
    assert result.notes[0] == "0.weight stays in float: it is tied to embeddings"


def test_other_layers_stay_in_float():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GRU(4, 3))
    assert list(quiet(model, [torch.randn(30, 4)]).labels) == ["0.weight"]


class Stops(LayerSolver):
    """Fails at the third layer."""

    name = "stops"

    def __init__(self, error):
        self.error, self.calls = error, 0

    def solve(self, problem):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return RoundNearest().solve(problem)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_a_network_is_restored_when_rounding_ends_early(error):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), nn.BatchNorm1d(2), nn.ReLU()) for _ in range(3))
    )
    model[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    with pytest.raises(type(error)):
        quiet(model, [torch.randn(20, 2, 8)], solver=Stops(error))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all("forward" not in vars(m) for m in model.modules())


def test_the_answer_depends_on_the_seed_and_not_on_the_global_one():
    """Noise in the forward, and pixels of images so large that they are drawn."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3)

        def forward(self, x):
            return self.conv(x + torch.randn_like(x))

    torch.manual_seed(0)
    model, x = Noisy(), torch.randn(8, 2, 60, 60)
    answers = []
    for state, seed in ((1, 0), (2, 0), (1, 5)):
        torch.manual_seed(state)
        state_before = torch.get_rng_state()
        answers.append(quiet(copy.deepcopy(model), [x], seed=seed).answers["conv.weight"].scale)
        assert torch.equal(torch.get_rng_state(), state_before)
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3, groups=2),
        nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2),
        nn.ConvTranspose1d(4, 2, 3, groups=2),
        nn.ConvTranspose1d(4, 6, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_saved_and_loaded_to_the_bit(layer, dtype, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(copy.deepcopy(layer)).to(dtype)
    result = quiet(model, [torch.randn(30, 4, 9, dtype=dtype)], bits=[-1, 0, 0.5])
    assert result.save(tmp_path / "small.safetensors") == (tmp_path / "small.safetensors").stat().st_size
    loaded = mq.load(tmp_path / "small.safetensors", nn.Sequential(copy.deepcopy(layer)))
    assert torch.equal(loaded[0].weight.to(dtype), model[0].weight)


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Linear(9, 5), 4),
        (nn.Linear(9, 5), 9),
        (nn.Conv1d(4, 6, 3, groups=2), 4),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), 4),
    ],
    ids=["linear", "whole rows", "convolution", "transposed"],
)
def test_groups_of_inputs_have_scales_and_zero_points_and_are_saved_to_the_bit(layer, size, zero_point, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(copy.deepcopy(layer))
    result = quiet(model, [torch.randn(30, 4, 9)], group_size=size, zero_point=zero_point)
    rows = [] if isinstance(layer, nn.ConvTranspose1d) else model[0].weight.detach().flatten(1)
    for row in rows:
        for run in row.split(size):
            assert len(run.unique()) <= 4
    if isinstance(layer, nn.Linear) and size == 4:
        assert max(len(row.unique()) for row in rows) > 4
        assert result.pack().parameters["0.weight"].scale.shape == (5, 3)
    result.save(tmp_path / "small.safetensors")
    loaded = mq.load(tmp_path / "small.safetensors", nn.Sequential(copy.deepcopy(layer)))
    assert torch.equal(loaded[0].weight, model[0].weight)


def test_groups_and_zero_points_lower_the_energy():
    energies = []
    for settings in ({}, {"group_size": 3}, {"group_size": 3, "zero_point": True}):
        energies.append(sum(layer.energy for layer in quiet(mlp(), [X], solver="icm", **settings).layers))
    assert energies[0] > energies[1] > energies[2]


class Counting(RoundNearest):
    """Counts the layers that it solves, and may stop."""

    solved = 0

    def solve(self, problem):
        Counting.solved += 1
        if Counting.solved == 3:
            raise KeyboardInterrupt
        return super().solve(problem)


@pytest.mark.parametrize("settings", [{}, {"group_size": 4, "zero_point": True}])
def test_the_same_call_goes_on_where_it_was_interrupted(settings, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()) for _ in range(4))
    )
    images = torch.randn(8, 2, 60, 60)  # so large that pixels are drawn
    whole, again = copy.deepcopy(model), copy.deepcopy(model)
    Counting.solved = -9
    expected = quiet(whole, [images], solver=Counting(), **settings)
    Counting.solved = 0
    with pytest.raises(KeyboardInterrupt):
        quiet(again, [images], solver=Counting(), folder=tmp_path, **settings)
    found = quiet(again, [images], solver=Counting(), folder=tmp_path, **settings)
    assert Counting.solved == 5  # the third one twice
    assert [(layer.name, layer.energy) for layer in found.layers] == [(o.name, o.energy) for o in expected.layers]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert found.save(tmp_path / "small") == expected.save(tmp_path / "other")
    with pytest.raises(mq.BadInput, match="keeps the answers of another call"):
        quiet(again, [images], solver=Counting(), folder=tmp_path, **settings)


def test_the_report_says_how_far_from_the_optimum_a_layer_may_be():
    result = quiet(mlp(), [X], bound=True)
    assert all(0 < layer.bound <= layer.energy for layer in result.layers)
    assert "above the optimum" in str(result)
    assert "at most " in str(result).splitlines()[1]


def test_progress_is_told_by_layer(capsys):
    quiet(mlp(), [X], progress=True)
    assert capsys.readouterr().err.splitlines()[1].startswith("2 of 2: 2.weight, energy 1.000 of gptq's, ")


PRETRAINED = Path(__file__).parents[2] / ".." / "shared" / "pretrained" / "resnet20_cifar10.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "least"), [(8, 91.43), (2, 90.4)])
def test_a_public_resnet_keeps_its_accuracy(bits, least):
    from safetensors.torch import load_file

    from mrfquant.data import cifar10, data_root
    from mrfquant.models import CifarResNet
    from mrfquant.training import evaluate

    if not PRETRAINED.exists():
        pytest.skip("needs the public weights")
    try:
        data = cifar10(data_root(), statistics="imagenet")
    except mq.BadInput:
        pytest.skip("needs CIFAR-10")
    model = CifarResNet((3, 32, 32), 10, depth=20)
    model.load_state_dict(load_file(PRETRAINED))
    batches = (images for (images, _), _ in zip(data.ordered("train", 128), range(8), strict=False))
    mq.round_network(model, batches, bits=bits, exclude=["conv1", "linear"], progress=False)
    assert evaluate(model, data, "test")["top1"] >= least


def test_rows_of_large_layers_are_rounded_some_at_a_time_with_the_same_answer(monkeypatch):
    whole = quiet(mlp(), [X], group_size=2, zero_point=True)
    monkeypatch.setattr("mrfquant.rounding.network.MOST_AT_ONCE", 13)
    for name, labels in quiet(mlp(), [X], group_size=2, zero_point=True).labels.items():
        assert torch.equal(labels, whole.labels[name])
