"""Weights and checkpoints: damaged bytes, and states that load and have other parts than a run writes."""

import copy
import functools
import operator

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mrfquant.data import digits
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.storage.checkpoints import Checkpoints, fitting
from mrfquant.storage.weights import read_weights
from mrfquant.training import Trainer


def read_states(path):
    checkpoints = Checkpoints(path.parent)
    for aside in path.parent.glob("*.damaged*"):
        aside.unlink()
    return checkpoints.newest(lambda text: None)


def checkpoint(path):
    Checkpoints(path.parent).save(1, {"w": torch.ones(9), "best": None, "losses": [1.0], "name": "x"}, None)


def weights(path):
    torch.save({"a": torch.ones(5), "b": torch.zeros(2, 2)}, path)


def old_weights(path):
    torch.save({"a": torch.ones(5)}, path, _use_new_zipfile_serialization=False)


READERS = {  # name: the file, how a whole one is made, how it is read
    "pt": ("x.pt", weights, read_weights),
    "old pt": ("x.pt", old_weights, read_weights),
    "safetensors": ("x.safetensors", lambda p: save_file({"a": torch.ones(3)}, p), read_weights),
    "checkpoint": ("step-00000001.pt", checkpoint, read_states),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_state_gives_an_answer_or_a_sentence(name, fuzz, tmp_path):
    file, make, read = READERS[name]
    make(tmp_path / file)
    fuzz(name, tmp_path / file, read)


OPTIMIZERS = {
    "Adam": functools.partial(torch.optim.Adam, lr=0.01),
    "SGD": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.9),
    "Adamax": functools.partial(torch.optim.Adamax, lr=0.01),
}


def places(state):
    """The paths of keys and indices to all that is in a state."""
    for key in state if isinstance(state, dict) else range(len(state)):
        yield (key,)
        if isinstance(state[key], dict | list | tuple):
            yield from ((key, *rest) for rest in places(state[key]))


def other_parts(state, rng):
    """The state with another value at a place, or without it."""
    state = copy.deepcopy(state)
    found = [
        place for place in places(state) if not isinstance(functools.reduce(operator.getitem, place[:-1], state), tuple)
    ]
    *outer, last = rng.choice(found)
    part = functools.reduce(operator.getitem, outer, state)
    values = [
        None,
        "text",
        [1],
        {},
        -1,
        2**70,
        float("nan"),
        True,
        torch.ones(2),
        torch.ones(1),
        torch.ones(3, 3).bool(),
    ]
    if (value := rng.choice(["missing", *values])) == "missing":
        del part[last]
    else:
        part[last] = value
    return state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_with_other_parts_goes_on_or_is_refused(name, fuzz, tmp_path):
    """As far as the next step, and saved again."""
    data = digits()

    def trainer():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(784, 3), nn.BatchNorm1d(3), nn.Linear(3, 10))
        solver = ProximalMeanField(Labelling(network, [-1.0, 1.0]), OPTIMIZERS[name])
        return Trainer(network, data, solver, iterations=4, batch_size=8, eval_interval=4)

    first = trainer()
    first._step()
    first._losses = []
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, first.state_dict(), None)
    path = checkpoints._path("step", 1)
    whole = torch.load(path, weights_only=True)

    def read(path):
        for aside in path.parent.glob("*.damaged*"):
            aside.unlink()
        if (state := Checkpoints(path.parent).newest(lambda text: None)) is None:
            return
        with fitting("the checkpoint is of another run"):
            second = trainer()
            second.load_state_dict(state)
        second._step()
        second.state_dict()

    fuzz(f"parts {name}", path, read, lambda rng: torch.save(other_parts(whole, rng), path))
