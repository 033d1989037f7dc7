"""Forwards that begin where they are needed: the same answers as whole forwards, with few calls."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.models import GPT
from mrfquant.rounding import replay


class Block(nn.Module):
    """A small residual block that counts its calls."""

    calls: Counter = Counter()

    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, *, gain=1.0):
        Block.calls[id(self)] += 1
        return x + gain * 0.1 * self.two(functional.relu(self.one(x)))


class Glued(nn.Module):
    """Blocks with layers before, between and after them, and functions between."""

    def __init__(self, depth=4):
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.first, self.second = nn.ModuleList(Block(6) for _ in range(depth)), nn.Sequential(Block(6), Block(6))

    def forward(self, x):
        x = torch.tanh(self.into(x))
        for block in self.first:
            x = block(x, gain=2.0)
        return self.out(functional.relu(self.second(functional.gelu(self.middle(x)))))


class Skips(Glued):
    """The first blocks' outputs are read again at the end."""

    def forward(self, x):
        x = self.into(x)
        kept = []
        for block in self.first:
            x = block(x)
            kept.append(x)
        return self.out(self.second(self.middle(x) + kept[0]) + kept[1])


class Twice(Glued):
    """A block that is called twice is no unit."""

    def forward(self, x):
        x = self.middle(self.into(x))
        for block in (*self.first, self.first[0]):
            x = block(x)
        return self.out(self.second(x))


class InPlace(Glued):
    """What a block gives is written to."""

    def forward(self, x):
        x = self.middle(self.into(x))
        for block in self.first:
            x = block(x).relu_()
        return self.out(self.second(x))


@pytest.mark.parametrize("kind", [Glued, Skips, Twice, InPlace])
def test_answers_are_those_of_whole_forwards(kind, monkeypatch):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(40, 3)
    whole = copy.deepcopy(model)
    drop_outputs_before = mq.round_network(model, [x[:30], x[30:]], solver="gptq", progress=False)
    monkeypatch.setattr(replay, "_blocks", lambda *_: iter(()))
    expected = mq.round_network(whole, [x[:30], x[30:]], solver="gptq", progress=False)
    assert drop_outputs_before.labels.keys() == expected.labels.keys()
    for name, labels in expected.labels.items():
        assert torch.equal(labels, drop_outputs_before.labels[name]), name
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize("depth", [2, 8])
def test_calls_of_a_block_do_not_grow_with_the_depth(depth):
    Block.calls.clear()
    model = Glued(depth)
    mq.round_network(model, [torch.randn(20, 3)] * 2, solver="nearest", progress=False)
    # One batch to find the blocks, both to find what is used; then float and rounded for two weights and the output.
    assert set(Block.calls.values()) == {1 + 2 + 2 * 2 * 3}
    assert all("forward" not in vars(module) for module in model.modules())


def test_weights_with_the_same_inputs_are_gathered_together():
    model, calls = GPT((8,), 11, layers=2, width=8, heads=2), Counter()
    model.blocks[0].mlp.register_forward_hook(lambda *_: calls.update(["mlp"]))
    tokens = torch.randint(11, (6, 8))
    result = mq.round_network(model, [tokens], solver="nearest", progress=False)
    assert len(result.layers) == 12
    # Forwards end before the MLP for attention's weights and within it for its first one; its second one and the
    # block's outputs need all of it.
    assert calls["mlp"] == 2 + 2 * 2
