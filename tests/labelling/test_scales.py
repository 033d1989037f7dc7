"""Runs of weights that share a scale: how they are cut, averaged, learned, and what is refused."""

import pytest
import torch
from torch import nn

from mrfquant.errors import BadInput, BadSetting
from mrfquant.inference import ProximalMeanField
from mrfquant.inference.learned_scales import LearnedScales
from mrfquant.labelling import Labelling
from mrfquant.labelling.scales import RunScales


class Net(nn.Module):
    """Parameters of every kind: rows that runs of four fill or not, one dimension, a kernel, and nothing at all."""

    def __init__(self):
        super().__init__()
        self.even, self.odd, self.short = nn.Linear(8, 3), nn.Linear(10, 4, bias=False), nn.Linear(3, 5, bias=False)
        self.kernel = nn.Conv2d(3, 2, (2, 3), bias=False)
        self.nothing = nn.Parameter(torch.zeros(0, 7))

    def forward(self):
        return torch.cat([(p * (p + 1)).flatten() for p in self.parameters()]).sin().sum()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().double()


def runs_of(p, size):
    """The weights of every run, cut one by one."""
    rows = p.flatten(1) if p.dim() > 1 else p[None]
    size = size if p.dim() > 1 else rows.shape[1]
    return [row[first : first + size] for row in rows for first in range(0, len(row), size)]


def test_runs_have_the_mean_magnitude_of_their_weights(model):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    labelling = Labelling(model, {"even.*": [-2, 2], "*": [-1, 1]}, scale="group", group_size=4)
    for name in labelling.labelled.spans:
        level = 2 if name.startswith("even") else 1
        scale = labelling.labelled.view(name, labelling.scale)
        for weights, found in zip(runs_of(before[name], 4), runs_of(scale, 4), strict=True):
            torch.testing.assert_close(found, (weights.abs().mean() / level).expand_as(found))
    odd, short, kernel, even = [4, 4, 2] * 4, [3] * 5, [4, 4, 4, 4, 2] * 2, [4, 4] * 3 + [3]
    assert labelling.scales.lengths.tolist() == odd + short + kernel + even


def test_a_group_that_a_row_fits_in_is_a_channel(model):
    scales = [
        Labelling(Net(), [-1, 1], scale=scale, group_size=64).scales.lengths.tolist() for scale in ("group", "channel")
    ]
    assert scales[0] == scales[1]


def test_the_gradient_of_learned_groups_is_the_derivative_of_the_loss(model):
    labelling = Labelling(model, [-1, 1], scale="group", group_size=4)
    learned, w = LearnedScales(labelling), labelling.labelled.w
    model().backward()
    labelling.collect_gradients()
    found = learned.gradient() * labelling.scales.lengths.double().sqrt()
    theta, u = learned.log.clone(), w.detach() / labelling.scale

    def loss(theta):
        learned.log.copy_(theta)
        learned.apply()
        w.copy_(u * labelling.scale)
        return model()

    with torch.no_grad():
        for i, direction in enumerate(1e-6 * torch.eye(len(theta), dtype=torch.float64)):
            slope = (loss(theta + direction) - loss(theta - direction)) / 2e-6
            torch.testing.assert_close(found[i], slope, rtol=1e-6, atol=1e-7)
        loss(theta)
    learned.reload()
    torch.testing.assert_close(learned.log, theta, rtol=0, atol=1e-15)


@pytest.mark.parametrize("sharing", ["layer", "channel", "group"])
def test_averages_and_spreads_of_a_block_are_those_of_its_parameters(model, sharing):
    labelling = Labelling(model, {"odd.*": [-1, 0, 1], "*": [-1, 1]}, scale=sharing, group_size=4)
    scales, x = labelling.scales, torch.randn(len(labelling), dtype=torch.float64)
    whole = scales.average(x)
    parts = [scales.average(x[b.start : b.start + b.m], b.start) for b in labelling.blocks]
    assert torch.equal(torch.cat(parts), whole)
    scales.set(whole)
    expected = labelling.scale
    scales.weights.values.zero_()
    for block, part in zip(labelling.blocks, parts, strict=True):
        scales.set(part, block.start)
    assert torch.equal(labelling.scale, expected)
    torch.testing.assert_close(scales.average(labelling.scale), whole)


def test_learned_channels_of_transposed_weights_are_rows_too():
    model = nn.Linear(3, 4, bias=False)
    model.weight = nn.Parameter(torch.randn(3, 4).t())
    labelling = Labelling(model, [-1, 1], scale="channel")
    learned = LearnedScales(labelling)
    learned.log.copy_(torch.arange(4).float())
    learned.apply()
    expected = torch.arange(4).float().exp()[:, None].expand(4, 3)
    assert torch.equal(labelling.labelled.view("weight", labelling.scale), expected)


def test_groups_of_weights_that_are_not_rows_in_memory_are_refused():
    model = nn.Sequential(nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)
    with pytest.raises(BadInput, match=r"rows of 0.weight one after another in memory.*make it contiguous"):
        Labelling(model, [-1, 1], scale="group")


@pytest.mark.parametrize("size", [0, -1, 2.5, "64"])
def test_impossible_group_sizes_are_refused(size):
    with pytest.raises(BadSetting, match=r"Labelling\.group_size"):
        Labelling(nn.Linear(4, 4), [-1, 1], scale="group", group_size=size)


@pytest.mark.parametrize("learn", [False, True])
def test_groups_train_and_are_restored(learn):
    def solver():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 1))
        labelling = Labelling(model, [-1, 0, 1], scale="group", group_size=4)
        return model, ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.05), learn_scale=learn)

    def run(model, solver, steps):
        for _ in range(steps):
            (model(torch.linspace(-1, 1, 50).view(5, 10)) - 0.3).square().mean().backward()
            solver.step()

    model, whole = solver()
    scale = whole.labelling.scale.clone()
    run(model, whole, 8)
    assert torch.equal(whole.labelling.scale, scale) != learn
    model, first = solver()
    run(model, first, 5)
    state = first.state_dict()
    model, second = solver()
    second.load_state_dict(state)
    run(model, second, 3)
    torch.testing.assert_close(second.labelling.labelled.w, whole.labelling.labelled.w, rtol=1e-5, atol=1e-6)
    with second.rounded():
        second.labelling.check_on_levels(model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by compiled loops, by torch
@pytest.mark.parametrize("length", [1, 64, 1000, 70_000])
def test_runs_multiply_and_divide_the_weights_of_any_part_as_repeated_scales_do(dtype, length):
    lengths = torch.randint(length, length + 3, (140_000 // length + 1,), generator=torch.Generator().manual_seed(0))
    values = torch.linspace(0.3, 2.0, len(lengths), dtype=dtype)
    each, ends = values.repeat_interleave(lengths), lengths.cumsum(0)
    for start, stop in [(0, len(each)), (5, 50_003), (40_000, 90_000), (7, 7)]:
        scales = RunScales(values, ends, 0, len(each)).narrow(start, stop)
        x = torch.randn(stop - start, dtype=dtype)
        assert torch.equal(scales.each(), each[start:stop])
        assert torch.equal(scales.multiply(x.clone()), x * each[start:stop])
        assert torch.equal(scales.divide(x.clone()), x / each[start:stop])


def test_scales_take_memory_for_runs_only():
    labelling = Labelling(nn.Linear(512, 512), [-1, 1], scale="channel")
    scales = labelling.scales.weights
    assert scales.values.numel() == scales.ends.numel() == 512 + 1
    assert all(block.scales.values is scales.values for block in labelling.blocks)
