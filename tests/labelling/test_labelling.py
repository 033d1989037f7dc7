"""A labelled network computes and differentiates as before, from one vector that the labelling owns."""

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput, BadSetting
from mrfquant.inference import ProximalMeanField
from mrfquant.inference.learned_scales import LearnedScales
from mrfquant.labelling import Labelling, LevelSet


class Net(nn.Module):
    """A convolution, a layer that is used twice, two layers that share their weights, a frozen one, and a norm."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.twice = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.inward = nn.Linear(6, 5)
        self.outward = nn.Linear(6, 5)
        self.outward.weight = self.inward.weight

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        x = self.frozen(self.twice(self.twice(x).relu())).relu()
        return self.inward(x) * self.outward(x)


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def images(n=4, size=6):
    return normal(n, 3, size, size)


def storage(x):
    return x.untyped_storage().data_ptr()


def rounded_at_random(labelling):
    generator = torch.Generator().manual_seed(0)
    for block in labelling.blocks:
        block.write_labels(torch.randint(block.d, (block.m,), generator=generator, dtype=torch.int32))


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def level_values(model):
    return {name: set(p.detach().flatten().tolist()) for name, p in model.named_parameters()}


# --- the network goes on as before


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS = {  # how to build it, its input, what stays free
    "net": (Net, lambda: images(), "*.bias"),
    "net, channels last": (
        lambda: Net().to(memory_format=torch.channels_last),
        lambda: images().to(memory_format=torch.channels_last),
        "norm.*",
    ),
    "resnet18": (lambda: import_torchvision().models.resnet18(num_classes=10), lambda: images(2, 32), "*bn*"),
    "transformer": (encoder, lambda: normal(2, 7, 16), "*norm*"),
    "lstm": (lambda: nn.LSTM(5, 6, 2), lambda: normal(4, 2, 5), "bias*"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_loss_and_gradients_are_those_of_the_untouched_network(name):
    build, inputs, free = NETWORKS[name]
    torch.manual_seed(0)
    ours = build()
    theirs = copy.deepcopy(ours)
    labelling = Labelling(ours, [-1, 1], exclude=[free])
    assert len(labelling)
    assert len(labelling.free)
    x, losses = inputs(), []
    for model in (ours, theirs):
        out = model(x)
        losses.append((out[0] if isinstance(out, tuple) else out).square().mean())
        losses[-1].backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    assert losses[0].item() != 0
    for (key, p), (_, truth) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(p, truth, rtol=0, atol=0, msg=key)
        torch.testing.assert_close(p.grad, truth.grad, rtol=1e-5, atol=1e-7, msg=key)


# --- views


def test_the_vector_is_what_the_network_computes_with():
    model, x = net(), images()
    labelling = Labelling(model, [-1, 1])
    before = model(x)
    labelling.labelled.w.mul_(2)
    assert not torch.allclose(model(x), before)
    assert all(storage(p) == storage(labelling.labelled.w) for p in model.parameters() if p.requires_grad)


def test_the_vector_holds_each_parameter_where_its_span_says():
    model = net()
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    labelling = Labelling(model, [-1, 1])
    stops = [0]
    for name, (start, stop) in labelling.labelled.spans.items():
        assert start == stops[-1]
        assert torch.equal(labelling.labelled.w[start:stop].view_as(values[name]), values[name])
        assert torch.equal(labelling.labelled.view(name, labelling.labelled.w), values[name])
        stops.append(stop)
    assert stops[-1] == len(labelling) == len(labelling.labelled.w)


def test_backward_adds_to_the_gradient_until_it_is_cleared():
    model, x = net().eval(), images()
    labelling = Labelling(model, [-1, 1], exclude=["norm*"])
    parameters = [p for p in model.parameters() if p.requires_grad]
    truth = dict(zip(parameters, torch.autograd.grad(model(x).square().sum(), parameters), strict=True))
    assert not labelling.labelled.g.any()
    for times in (1, 2):
        model(x).square().sum().backward()
        for flat in (labelling.labelled, labelling.free):
            for name in flat.spans:
                expected = times * truth[model.get_parameter(name)]
                torch.testing.assert_close(flat.view(name, flat.g), expected, rtol=1e-5, atol=1e-6)
            assert flat.g.any()
    labelling.zero_gradient()
    assert not labelling.labelled.g.any()
    assert not labelling.free.g.any()
    assert all(not p.grad.any() for p in parameters)


def test_a_module_used_twice_accumulates_both_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model, x = nn.Sequential(layer, nn.Tanh(), layer), torch.randn(3, 4)
    w, b = (p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias))
    first = torch.tanh(x @ w.T + b)
    ((first @ w.T + b) ** 2).sum().backward()
    labelling = Labelling(model, [-1, 1])
    model(x).square().sum().backward()
    assert len(labelling) == 20
    torch.testing.assert_close(labelling.labelled.g, torch.cat([w.grad.flatten(), b.grad]))


def test_tied_weights_are_one_variable_and_stay_tied():
    model = net()
    labelling = Labelling(model, [-1, 1])
    assert [name for name in labelling.labelled.spans if name.endswith("ward.weight")] == ["inward.weight"]
    assert len(labelling) == sum(p.numel() for p in set(model.parameters()) if p.requires_grad)
    assert model.inward.weight is model.outward.weight
    labelling.blocks[0].write_labels(torch.ones(len(labelling), dtype=torch.int32))
    assert (model.outward.weight == 1).all()


def test_frozen_parameters_stay_outside_unchanged():
    model = net()
    before, memory = model.frozen.weight.clone(), storage(model.frozen.weight)
    labelling = Labelling(model, [-1, 1])
    assert not any("frozen" in name for name in [*labelling.labelled.spans, *labelling.free.spans])
    rounded_at_random(labelling)
    model(images()).sum().backward()
    assert torch.equal(model.frozen.weight, before)
    assert storage(model.frozen.weight) == memory
    assert model.frozen.weight.grad is None


def test_loading_a_state_dict_reaches_the_vector():
    model, other = net(0), net(1)
    labelling = Labelling(model, [-1, 1])
    model.load_state_dict(other.state_dict())
    start, stop = labelling.labelled.spans["conv.weight"]
    assert torch.equal(labelling.labelled.w[start:stop], other.conv.weight.detach().flatten())


def test_channels_last_weights_keep_their_memory_format():
    model = net().to(memory_format=torch.channels_last)
    before = model.conv.weight.detach().clone()
    Labelling(model, [-1, 1])
    weight = model.conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight, before)


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.pruned = nn.Parameter(torch.arange(24.0).view(3, 8)[:, :4])  # strides (8, 1)
        self.next = nn.Parameter(torch.full((12,), -1.0))


def test_parameters_that_are_slices_keep_their_values():
    model = Sliced()
    pruned = model.pruned.detach().clone()
    labelling = Labelling(model, [-1, 1])
    assert torch.equal(model.pruned, pruned)
    assert (model.next == -1).all()
    assert len(labelling) == 24


def test_transposed_and_scalar_parameters_keep_their_values():
    model = nn.Module()
    model.transposed = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    model.scalar = nn.Parameter(torch.tensor(7.0))
    labelling = Labelling(model, [-1, 1])
    assert model.transposed.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert model.scalar.item() == 7
    assert sorted(labelling.labelled.w.tolist()) == [0, 1, 2, 3, 4, 5, 7]


# --- which parameters, which levels


def test_without_levels_everything_is_free():
    model = net()
    labelling = Labelling(model)
    assert (len(labelling), labelling.blocks) == (0, [])
    assert len(labelling.free) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    labelling.free.w.zero_()
    assert not model.conv.weight.any()


def test_excluded_parameters_are_free():
    model = net()
    labelling = Labelling(model, [-1, 1], exclude=["norm.*", "*.bias"])
    assert list(labelling.labelled.spans) == ["conv.weight", "twice.weight", "inward.weight"]
    free = ["conv.bias", "norm.weight", "norm.bias", "twice.bias", "inward.bias", "outward.bias"]
    assert list(labelling.free.spans) == free
    before = model.norm.weight.clone()
    rounded_at_random(labelling)
    assert torch.equal(model.norm.weight, before)
    assert set(model.conv.weight.flatten().tolist()) == {-1.0, 1.0}


def test_the_first_pattern_that_fits_gives_a_parameter_its_levels():
    model = net()
    levels = {"conv.*": [-1, 0, 1], "*.bias": (0, 2), "*ward.weight": LevelSet([5, 4]), "tw*": [2, 0]}
    labelling = Labelling(model, levels)
    rounded_at_random(labelling)
    found = level_values(model)
    assert found["conv.weight"] == {-1, 0, 1}
    assert found["conv.bias"] <= {-1, 0, 1}  # not *.bias, which comes later
    assert -1 in found["conv.bias"]
    assert found["inward.weight"] == {4, 5}
    assert found["twice.weight"] == {0, 2}
    assert all(found[name] <= {0, 2} for name in ("norm.bias", "twice.bias", "inward.bias", "outward.bias"))
    assert list(labelling.free.spans) == ["norm.weight"]


def test_blocks_are_contiguous_and_one_per_level_set():
    model = net()
    labelling = Labelling(model, {"conv.*": [-1, 0, 1], "inward.*": [0, 2], "twice.*": [1, 0, -1], "*": [2.0, 0.0]})
    assert [b.levels.values for b in labelling.blocks] == [(-1, 0, 1), (0, 2)]
    stop = 0
    for block in labelling.blocks:
        assert block.start == stop
        stop += block.m
        assert block.w.data_ptr() == labelling.labelled.w[block.start :].data_ptr()
        assert block.g.data_ptr() == labelling.labelled.g[block.start :].data_ptr()
        block.w.fill_(block.d)
    assert stop == len(labelling)
    three = {n for n, values in level_values(model).items() if values == {3.0}}
    two = {n for n, values in level_values(model).items() if values == {2.0}}
    assert three == {"conv.weight", "conv.bias", "twice.weight", "twice.bias"}
    assert two == {"norm.weight", "norm.bias", "inward.weight", "inward.bias", "outward.bias"}


@pytest.mark.parametrize(
    ("levels", "exclude", "pattern"),
    [
        ({"convs.*": [-1, 1], "*": [-1, 1]}, [], "convs.*"),
        ([-1, 1], ["Norm*"], "Norm*"),
        ([-1, 1], ["frozen*"], "frozen*"),
    ],
)
def test_patterns_that_decide_nothing_are_refused(levels, exclude, pattern):
    with pytest.raises(BadInput, match="matches no parameter") as error:
        Labelling(net(), levels, exclude)
    assert pattern in str(error.value)


def test_a_shared_parameter_is_selected_by_any_of_its_names():
    labelling = Labelling(net(), [-1, 1], which=lambda model: {"outward.weight", "twice.bias"})
    assert list(labelling.labelled.spans) == ["twice.bias", "inward.weight"]


def test_networks_and_settings_that_leave_nothing_to_do_are_refused():
    for empty in (nn.ReLU(), net().requires_grad_(False)):
        with pytest.raises(BadInput, match="no trainable parameter"):
            Labelling(empty, [-1, 1])
    with pytest.raises(BadInput, match="nothing to exclude from"):
        Labelling(net(), exclude=["norm*"])


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), "layers"])
def test_impossible_scales_are_refused(scale):
    with pytest.raises(BadSetting, match=r"Labelling\.scale"):
        Labelling(net(), [-1, 1], scale=scale)


# --- scales


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_layer_scale_is_the_mean_magnitude_of_each_tensor(memory):
    model = net().to(memory_format=memory)
    alpha = {name: np.abs(p.detach().numpy()).mean() for name, p in model.named_parameters()}
    labelling = Labelling(model, [-1, 1], exclude=["norm.bias"], scale="layer")
    labelling.blocks[0].write_labels(torch.ones(len(labelling), dtype=torch.int32))
    for name in labelling.labelled.spans:
        p = model.get_parameter(name).detach().numpy()
        assert p == pytest.approx(np.full(p.shape, alpha[name]), rel=1e-6)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_channel_scale_is_the_mean_magnitude_of_each_output_channel(memory):
    model = net().to(memory_format=memory)
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    labelling = Labelling(model, [-1, 1], exclude=["norm.bias"], scale="channel")
    labelling.blocks[0].write_labels(torch.zeros(len(labelling), dtype=torch.int32))
    for name in labelling.labelled.spans:
        p, was = model.get_parameter(name).detach().numpy(), before[name]
        for channel, values in enumerate(was):
            alpha = np.abs(values).mean() if was.ndim > 1 else np.abs(was).mean()  # a bias has one scale
            assert p[channel] == pytest.approx(np.full(values.shape, -alpha), rel=1e-6)


def test_layer_scale_is_the_best_one_for_the_signs_of_the_weights():
    """The closed form of Binary Weight Networks: alpha = argmin |w - alpha sign(w)|²."""
    model = nn.Sequential(nn.Linear(7, 5, bias=False))
    w = model[0].weight.detach().clone()
    best = np.linalg.lstsq(w.sign().reshape(-1, 1).numpy(), w.reshape(-1).numpy(), rcond=None)[0].item()
    labelling = Labelling(model, [-1, 1], scale="layer")
    labelling.blocks[0].write_labels((w.flatten() > 0).int())
    assert model[0].weight.abs().detach().numpy() == pytest.approx(np.full(w.shape, best), rel=1e-5)


def test_scales_of_other_levels_are_relative_to_the_levels_magnitude():
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4))
    means = [p.detach().abs().mean().item() for p in (model[0].weight, model[1].weight)]
    labelling = Labelling(model, {"0.weight": [0, 1], "1.weight": [-4, -2, 1, 3]}, scale="layer")
    for block in labelling.blocks:
        block.write_labels(torch.full((block.m,), block.d - 1, dtype=torch.int32))
    assert model[0].weight.detach().numpy() == pytest.approx(np.full((5, 7), means[0] / 0.5), rel=1e-6)
    assert model[1].weight.detach().numpy() == pytest.approx(np.full((4, 5), 3 * means[1] / 2.5), rel=1e-6)


def test_a_number_as_scale_multiplies_every_level():
    model = net()
    labelling = Labelling(model, {"conv.*": [-1, 0, 1], "*": [-1, 1]}, scale=0.25)
    rounded_at_random(labelling)
    assert level_values(model)["conv.weight"] == {-0.25, 0.0, 0.25}
    assert level_values(model)["twice.weight"] == {-0.25, 0.25}


def test_zeros_get_the_scale_of_a_random_start():
    model = net()  # the bias of a fresh norm is zero
    labelling = Labelling(model, [-1, 1], scale="layer")
    scale = labelling.labelled.view("norm.bias", labelling.scale)
    assert 0.02 < scale.min() == scale.max() < 0.2  # the mean magnitude of N(0, 0.1²) is 0.08


@pytest.mark.parametrize("scale", ["layer", "channel", 0.3])
def test_the_gradient_of_a_scale_is_the_derivative_of_the_loss(scale):
    """That of learned groups is looked at in test_scales.py."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    labelling = Labelling(model, [-1, 1], scale=scale)
    learned, before, w = LearnedScales(labelling), labelling.scale.clone(), labelling.labelled.w.clone()
    x = torch.randn(6, 5, dtype=torch.float64)

    def loss():
        return model(x).square().sum()

    def slope(i):
        values = []
        for h in (1e-4, -1e-4):
            learned.log[i] += h
            learned.apply()
            labelling.labelled.w.copy_(w * labelling.scale / before)
            values.append(loss().item())
            learned.log[i] -= h
        return (values[0] - values[1]) / 2e-4

    with torch.no_grad():
        expected = torch.tensor([slope(i) for i in range(len(learned.log))], dtype=torch.float64)
        labelling.labelled.w.copy_(w)
    loss().backward()
    labelling.collect_gradients()
    found = learned.gradient() * labelling.scales.lengths.double().sqrt()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert len(found) == {"layer": 4, 0.3: 4, "channel": 4 + 1 + 3 + 1}[scale]


def test_scales_without_a_scale_cannot_be_learned():
    with pytest.raises(BadSetting, match="learn_scale"):
        ProximalMeanField(Labelling(net(), [-1, 1]), torch.optim.Adam, learn_scale=True)


# --- what is on levels


@pytest.mark.parametrize("scale", ["none", 0.3, "layer", "channel"])
@pytest.mark.parametrize(
    "levels", [[-1, 1], {"conv.*": [-1, 0.1, 1], "twice.*": [-2, -1, 1, 3], "*ward*": [-0.3, 1.1]}]
)
def test_off_levels_are_refused_to_the_last_bit(levels, scale):
    model = net().to(memory_format=torch.channels_last)
    labelling = Labelling(model, levels, exclude=["norm.*"], scale=scale)
    rounded_at_random(labelling)
    labelling.check_on_levels(state_of(model))
    for name in labelling.labelled.spans:
        for towards in (-math.inf, math.inf):
            state = state_of(model)
            last = state[name].view(-1) if state[name].is_contiguous() else state[name].permute(0, 2, 3, 1).view(-1)
            last[-1] = torch.nextafter(last[-1], torch.tensor(towards))
            with pytest.raises(BadInput, match=name):
                labelling.check_on_levels(state)


def test_levels_of_another_parameter_do_not_count():
    model = net()
    labelling = Labelling(model, {"conv.*": [-1, 0, 1], "twice.*": [-1, 1]})
    rounded_at_random(labelling)
    state = state_of(model)
    state["twice.weight"][0, 0] = 0
    with pytest.raises(BadInput, match=r"twice\.weight"):
        labelling.check_on_levels(state)


def test_free_and_frozen_parameters_may_have_any_value():
    model = net()
    labelling = Labelling(model, [-1, 1], exclude=["norm.*"])
    rounded_at_random(labelling)
    state = state_of(model)
    state["norm.weight"].fill_(0.123)
    state["frozen.weight"].fill_(0.123)
    labelling.check_on_levels(state)


# --- the start


def test_initial_weights_are_xavier_uniform_for_tensors_and_small_normal_for_vectors():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 5), nn.Linear(40, 60), nn.BatchNorm1d(3000))
    labelling = Labelling(model, {"0.*": [-1, 0, 1], "*": [-1, 1]})
    before = labelling.labelled.w.clone()
    start = labelling.initial_weights()
    assert torch.equal(labelling.labelled.w, before)
    parts = {name: start[first:last].numpy() for name, (first, last) in labelling.labelled.spans.items()}
    for name, fans in {"0.weight": (8 + 16) * 25, "1.weight": 40 + 60}.items():
        bound = math.sqrt(6 / fans)
        assert 0.99 * bound < np.abs(parts[name]).max() <= bound
        assert scipy.stats.kstest(parts[name], scipy.stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3
    for name in ("0.bias", "1.bias", "2.weight", "2.bias"):
        assert scipy.stats.kstest(parts[name], scipy.stats.norm(0, 0.1).cdf).pvalue > 1e-3
    assert parts["2.weight"].std() == pytest.approx(0.1, rel=0.05)


def test_initial_weights_are_new_at_each_call_and_follow_torchs_seed():
    labelling = Labelling(net(), [-1, 1])
    torch.manual_seed(3)
    first, second = labelling.initial_weights(), labelling.initial_weights()
    torch.manual_seed(3)
    assert torch.equal(labelling.initial_weights(), first)
    assert not torch.equal(first, second)
