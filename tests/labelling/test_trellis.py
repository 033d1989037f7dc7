"""A trellis is a level set of which a path takes few bits a weight."""

import itertools

import pytest
import torch

import mrfquant as mq
from mrfquant.errors import BadInput, BadSetting


def paths(levels, length):
    """All paths of a length, as labels (paths, length), from the bits that they are read from."""
    bits = levels.memory + levels.bits * (length - 1)
    found = []
    for stream in range(2**bits):
        read = [stream >> (bits - levels.memory - levels.bits * t) for t in range(length)]
        found.append([levels.label_of_state[s % len(levels)].item() for s in read])
    return torch.tensor(found)


@pytest.mark.parametrize(("bits", "memory"), [(1, 2), (1, 4), (2, 4), (2, 8), (3, 6)])
def test_levels_are_normal_quantiles_each_of_one_state(bits, memory):
    levels = mq.Trellis(bits, memory)
    assert len(levels) == 2**memory
    normal = torch.distributions.Normal(0, 1).cdf(torch.tensor(levels.values, dtype=torch.float64))
    torch.testing.assert_close(normal, (torch.arange(2**memory, dtype=torch.float64) + 0.5) / 2**memory)
    torch.testing.assert_close(levels.table.sort().values, torch.tensor(levels.values))
    assert (levels.label_of_state[levels.state_of_label] == torch.arange(2**memory)).all()


@pytest.mark.parametrize(("bits", "memory", "length"), [(1, 2, 4), (1, 3, 3), (2, 4, 3), (3, 4, 2)])
def test_paths_are_what_follows(bits, memory, length):
    levels = mq.Trellis(bits, memory)
    every = {tuple(path) for path in itertools.product(range(2**memory), repeat=length)}
    found = {tuple(path) for path in paths(levels, length).tolist()}
    assert len(found) == 2 ** (memory + bits * (length - 1))
    for path in every:
        labels = torch.tensor(path)
        follows = levels.follows(levels.state_of_label[labels]).all()
        assert follows == (path in found)
        if follows:
            assert (levels.label_of_state[levels.check_path(labels, "w")] == labels).all()
        else:
            with pytest.raises(BadInput, match="the labels of w are no path through a trellis"):
                levels.check_path(labels, "w")


def test_trellises_are_keys():
    assert len({mq.Trellis(2, 6), mq.Trellis(2, 6), mq.Trellis(1, 6), mq.Trellis(2, 7)}) == 3


@pytest.mark.parametrize(
    "settings", [{"memory": 2}, {"memory": 17}, {"bits": 9}, {"bits": 0}, {"bits": 4, "memory": 4}]
)
def test_impossible_ones_are_refused(settings):
    with pytest.raises(BadSetting, match=r"Trellis\.(bits|memory) = \d+, expected a whole number from"):
        mq.Trellis(**settings)


def test_training_by_another_jacobian_than_straight_through_is_refused():
    labelling = mq.Labelling(torch.nn.Linear(16, 16), mq.Trellis(2, 6), which="weights", scale="channel")
    with pytest.raises(BadInput, match="the labels of a trellis are trained straight through"):
        mq.ProximalMeanField(labelling, torch.optim.Adam)
