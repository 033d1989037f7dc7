"""Pairs of tensors and DataLoaders: the same rows, in an order that the seed decides and a resumed run repeats."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mrfquant.data import Loaders, Pairs
from mrfquant.errors import BadInput

X, Y = torch.arange(60.0).view(20, 3), torch.arange(20.0)[:, None]


def pairs() -> Pairs:
    return Pairs("table", (X, Y), (X[:4], Y[:4]), (X[4:9], Y[4:9]))


def loaders(shuffle=True) -> Loaders:
    train, rest = (DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=s) for s in (shuffle, False))
    return Loaders("table", train, rest, rest, (3,), 1)


def same(left, right):
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(left, right, strict=True))


@pytest.mark.parametrize("make", [pairs, loaders])
def test_an_epoch_has_every_row_at_most_once_with_its_target(make):
    data = make()
    assert (data.shape, data.outputs, data.size("train")) == ((3,), 1, 20)
    batches = list(itertools.islice(data.stream(6, seed=0), 3))
    rows = torch.cat([y for _, y in batches]).flatten().tolist()
    assert len(set(rows)) == 18
    assert all(torch.equal(x, X[y.flatten().long()]) for x, y in batches)


@pytest.mark.parametrize("make", [pairs, loaders])
@pytest.mark.parametrize("stop", [0, 2, 5, 8])
def test_a_restored_stream_goes_on_where_it_was(make, stop):
    whole = list(itertools.islice(make().stream(6, seed=1), 10))
    torch.manual_seed(99)  # the order is the run's, not the process's
    stream = make().stream(6, seed=1)
    list(itertools.islice(stream, stop))
    again = make().stream(6, seed=1)
    again.load_state_dict(stream.state_dict())
    assert same(whole[stop:], list(itertools.islice(again, 10 - stop)))
    assert not same(whole, list(itertools.islice(make().stream(6, seed=2), 10)))


def test_a_loader_that_keeps_its_own_position_is_asked_for_it():
    class Stateful(DataLoader):
        asked = None

        def state_dict(self):
            return {"mine": 7}

        def load_state_dict(self, state):
            self.asked = state

    loader = Stateful(TensorDataset(X, Y), batch_size=6)
    data = Loaders("table", loader, loader, loader, (3,), 1)
    state = data.stream(6, seed=0).state_dict()
    data.stream(6, seed=0).load_state_dict(state)
    assert loader.asked == {"mine": 7}


def test_evaluation_is_in_order_and_dicts_reach_the_network():
    assert torch.equal(torch.cat([x for x, _ in pairs().ordered("train", 7)]), X)
    halves = [torch.cat([x for x, _ in pairs().ordered("train", 7, rank, 2)]) for rank in range(2)]
    assert sorted(torch.cat(halves)[:, 0].tolist()) == X[:, 0].tolist()
    loader = DataLoader([({"x": row}, y) for row, y in zip(X, Y, strict=True)], batch_size=5)
    ((inputs, targets), *_) = Loaders("table", loader, loader, loader, (3,), 1).ordered("test")
    assert torch.equal(inputs["x"], X[:5])
    assert torch.equal(targets, Y[:5])


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="train has 20 inputs and 19 targets"):
        Pairs("table", (X, Y[1:]), (X, Y), (X, Y))
    with pytest.raises(BadInput, match="read by one process"):
        loaders().stream(6, seed=0, rank=0, world_size=2)
    with pytest.raises(BadInput, match="batch size 21, expected 1 to 20"):
        pairs().stream(21, seed=0)
