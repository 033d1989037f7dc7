"""Pruned networks have the outputs of the whole ones, and are smaller."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.models import VGG, CifarResNet, LeNet5, LeNet300, ResNet

NETWORKS = {
    "LeNet-300": (lambda: LeNet300((1, 28, 28), 10, width=0.2), (4, 1, 28, 28)),
    "LeNet-5": (lambda: LeNet5((1, 28, 28), 10, width=0.4), (4, 1, 28, 28)),
    "VGG": (lambda: VGG((3, 32, 32), 10, depth=11, width=0.1), (2, 3, 32, 32)),
    "ResNet": (lambda: ResNet((3, 16, 16), 10, width=0.1), (2, 3, 16, 16)),
    "CifarResNet": (lambda: CifarResNet((3, 16, 16), 10, depth=8), (2, 3, 16, 16)),
}


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def lived_in(model, seed=0):
    """In float64 and eval mode, with batch norms as training leaves them."""
    torch.manual_seed(seed)
    model.double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model


def with_zeroed_channels(model, share=0.5):
    """Random channels of every layer are 0."""
    with torch.no_grad():
        for layer in layers_of(model):
            layer.weight[torch.rand(len(layer.weight)) < share] = 0
    return model


def check_same(model, pruned, shape, pixels=None):
    x = torch.randn(pixels or shape, dtype=torch.float64)
    torch.testing.assert_close(pruned(x), model(x), rtol=1e-9, atol=1e-9)


def size(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_smaller_network_has_the_same_outputs(name, share):
    build, shape = NETWORKS[name]
    model = with_zeroed_channels(lived_in(build()), share)
    before = copy.deepcopy(model.state_dict())
    pruned = mq.prune(model)
    check_same(model, pruned, shape)
    assert size(pruned) < size(model) * (0.85 if name.endswith("ResNet") else 0.6)
    assert type(pruned) is type(model)
    assert list(pruned.state_dict()) >= list(before)  # some biases may be new
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert size(mq.prune(pruned)) == size(pruned)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_channel_goes_whose_norm_has_the_factor_0(name):
    build, shape = NETWORKS[name]
    model = lived_in(build())
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight = nn.Parameter(torch.randn_like(module.running_mean))
                module.weight[torch.rand_like(module.weight) < 0.5] = 0
    pruned = mq.prune(model)
    check_same(model, pruned, shape)
    assert size(pruned) < size(model) * (0.85 if name.endswith("ResNet") else 0.6)


def test_a_channel_that_another_layer_reads_without_the_norm_stays():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(5, 4), nn.BatchNorm1d(4)
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            x = self.first(x)
            return self.a(self.norm(x)) + self.b(x)

    model = lived_in(Fork())
    with torch.no_grad():
        model.norm.weight[:2] = 0
        model.b.weight[:, 1:] = 0
    pruned = mq.prune(model)
    check_same(model, pruned, (6, 5))
    assert pruned.first.out_features == 4  # 0 is read by b, 2 and 3 by a, 1 by a as a constant, which b has no use for


def test_every_layer_of_a_chain_has_the_channels_that_are_left():
    model = lived_in(LeNet5((1, 28, 28), 10, width=0.5))
    first, second, hidden, _ = layers_of(model)
    with torch.no_grad():
        for layer, zeroed in ((first, [0, 3]), (second, [1, 2, 9]), (hidden, range(100))):
            layer.weight[list(zeroed)] = 0
    small = layers_of(mq.prune(model))
    assert [tuple(layer.weight.shape) for layer in small] == [(8, 1, 5, 5), (22, 8, 5, 5), (150, 22 * 16), (10, 150)]
    assert (small[1].in_channels, small[1].out_channels, small[3].in_features) == (8, 22, 150)
    norms = [module for module in mq.prune(model).modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [8, 22, 150]


@pytest.mark.parametrize("padding", [0, 1, "same", "valid"])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_constants_are_exact_at_the_border(padding, mode):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.Sigmoid(),  # of 0 it is 1/2
        nn.Conv2d(6, 4, 3, padding=padding, padding_mode=mode, bias=False),
    )
    lived_in(model)
    with torch.no_grad():
        model[0].weight[:4] = 0
    pruned = mq.prune(model)
    check_same(model, pruned, (2, 2, 8, 8))
    check_same(model, pruned, (2, 2, 8, 8), pixels=(1, 2, 5, 11))  # of any size
    carried = mode == "zeros" and padding in (1, "same")
    assert pruned[0].out_channels == (3 if carried else 2)
    assert (pruned[3].bias is None) == carried


def test_channels_that_nothing_reads_go_too():
    model = lived_in(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    with torch.no_grad():
        model[4].weight[:, :2] = 0
        model[2].weight[:, 1] = 0
        model[2].weight[2:, 0] = 0  # read by those alone that nothing reads
    pruned = mq.prune(model)
    check_same(model, pruned, (5, 4))
    assert (pruned[0].out_features, pruned[2].out_features) == (4, 3)


class TwoReaders(nn.Module):
    """A layer that two others read, with other norms on the way."""

    def __init__(self, padding):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(6)])
        self.heads = nn.ModuleList([nn.Conv2d(6, 2, 3, padding=padding), nn.Conv2d(6, 3, 3, padding=0)])

    def forward(self, x):
        x = self.stem(x)
        outputs = [head(norm(x).relu()) for norm, head in zip(self.norms, self.heads, strict=True)]
        return torch.cat([output.flatten(1) for output in outputs], 1)


@pytest.mark.parametrize("padding", [0, 2])
def test_several_layers_may_read_a_channel(padding):
    for seed in range(5):
        model = lived_in(TwoReaders(padding), seed)
        with torch.no_grad():
            model.stem.weight[:4] = 0
        pruned = mq.prune(model)
        check_same(model, pruned, (2, 1, 9, 9))
        assert pruned.stem.out_channels < 6


class Awkward(nn.Module):
    """Layers that must stay as they are: used twice, tied, grouped, added, read by an unknown operation."""

    def __init__(self):
        super().__init__()
        self.twice, self.grouped = nn.Linear(4, 4), nn.Conv2d(1, 4, 1)
        self.by_groups = nn.Conv2d(4, 4, 1, groups=2)
        self.tied, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.tied.weight
        self.added, self.sorted, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = functional.relu(self.twice(functional.relu(self.twice(x))))
        x = self.by_groups(self.grouped(x[:, None, :, None]))[:, :, :, 0].mean(2)
        x = functional.relu(self.other(functional.relu(self.tied(x))))
        x = x + self.added(x)
        return self.last(self.sorted(x).sort(1).values)


def test_what_cannot_be_followed_stays():
    model = with_zeroed_channels(lived_in(Awkward()), 0.6)
    pruned = mq.prune(model)
    check_same(model, pruned, (3, 4))
    assert [p.shape for p in pruned.parameters()] == [p.shape for p in model.parameters()]


def test_a_network_of_a_solver_is_pruned_when_it_is_finalized():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    energy = mq.SumOf([mq.FirstOrderTaylor(), mq.LabelPrior({0: -1.0}, which=["0.*"])], [1.0, 100.0])
    solver = mq.ProximalMeanField(
        mq.Labelling(model, [-1, 0, 1]), lambda p: torch.optim.Adam(p, lr=0.005), energy=energy
    )
    solver.prepare(200)
    for _ in range(200):
        model(torch.ones(1, 8)).sum().backward()
        solver.step()
    pruned = mq.prune(solver.finalize())
    x = torch.randn(5, 8)
    torch.testing.assert_close(pruned(x), model(x))
    assert pruned[0].out_features == 1


class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_forward_that_depends_on_values_is_refused():
    with pytest.raises(mq.BadInput, match="the forward of Depends cannot be followed"):
        mq.prune(Depends())
