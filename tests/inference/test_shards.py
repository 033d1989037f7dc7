"""Processes that share the variables out end where those that all keep everything end, and go on from each other."""

import copy
import functools
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.compute import Team, present_team
from mrfquant.labelling.shards import Shards

TWO, THREE, FOUR = [-1, 1], [-1, 0, 1], [-2, -1, 1, 2]
STEPS, BATCH = 8, 12
MIXED = {"0.*": THREE, "2.*": TWO, "*": FOUR}
DECAY = {"norms and biases": {"weight_decay": 0.0}, "4.*": {"lr": 0.01}}
# Name -> solver, settings of the labelling, recipe of the optimizer, the largest norm of a gradient.
PMF, PLANES = mq.ProximalMeanField, {"form": "planes"}
LEARNED = {"learn_scale": True, "start": "weights"}
CASES = {
    "PMF": (PMF, {"levels": TWO}, torch.optim.Adam, None),
    "PMF, four levels": (PMF, {"levels": FOUR}, torch.optim.Adam, None),
    "PMF on planes": (functools.partial(PMF, **PLANES), {"levels": FOUR}, torch.optim.Adam, None),
    "PMF without auxiliary": (
        functools.partial(PMF, auxiliary=False),
        {"levels": THREE},
        functools.partial(torch.optim.SGD, momentum=0.9),
        None,
    ),
    "learned scales, clipped": (
        functools.partial(PMF, **LEARNED),
        {"levels": FOUR, "scale": "channel"},
        torch.optim.Adam,
        0.1,
    ),
    "three level sets": (functools.partial(mq.MirrorDescent, **PLANES), {"levels": MIXED}, torch.optim.AdamW, None),
    "groups": (functools.partial(PMF, groups=DECAY), {"levels": TWO, "which": "weights"}, torch.optim.AdamW, 0.1),
    "PGD": (mq.SparsemaxPGD, {"levels": FOUR}, torch.optim.RMSprop, None),
    "PICM": (
        functools.partial(mq.ProximalICM, start="weights"),
        {"levels": THREE, "scale": "layer"},
        torch.optim.NAdam,
        None,
    ),
    "MF": (functools.partial(mq.MeanField, damping=0.9), {"levels": TWO}, torch.optim.SGD, None),
    "BC": (mq.BinaryConnect, {"levels": FOUR}, torch.optim.Rprop, None),
    "PQ": (functools.partial(mq.ProxQuant, epoch=2), {"levels": THREE}, torch.optim.Adagrad, None),
    "REF": (mq.Reference, {}, torch.optim.RAdam, 0.1),
}


def nbytes(tensors):
    """Bytes of the storages that the tensors lie in, each counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def network(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(9, 31), nn.ReLU(), nn.Linear(31, 17), nn.LayerNorm(17), nn.Linear(17, 3)]
    return nn.Sequential(*layers).double()  # large beta and Adam would enlarge the roundings of float32


def batches():
    x = torch.randn(STEPS, BATCH, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return zip(x, x[..., :3].argmax(-1), strict=True)


class Run:
    """A network and its solver in this process and its peers."""

    def __init__(self, case, shard, seed=3):
        solver, settings, optimizer, self.clip = CASES[case]
        self.model, self.team = network(seed), present_team()
        labelling = mq.Labelling(self.model, **settings)
        self.solver = solver(labelling, functools.partial(optimizer, lr=0.02), shard=shard)
        self.solver.prepare(STEPS)

    def steps(self, first, last):
        rank, size = self.team.rank, self.team.world_size
        for x, y in list(batches())[first:last]:
            functional.cross_entropy(self.model(x[rank::size]), y[rank::size]).backward()
            self.solver.processes.average_gradients(self.team)
            if self.clip is not None:
                self.solver.processes.clip_gradients(self.clip, self.team)
            self.solver.step()

    def outcome(self):
        """The figures, the weights as they are and rounded, in every process; the whole state in the first."""
        figures = torch.tensor([0.0, *self.solver.diagnostics().values(), *self.solver.layer_entropy().values()])
        weights = [p.detach().clone() for p in self.model.parameters()]
        with self.solver.rounded():
            weights += [p.detach().clone() for p in self.model.parameters()]
        return [figures, *weights], copy.deepcopy(self.solver.state_dict())


def tensors_of(value):
    """Every tensor in a state, in order."""
    if isinstance(value, torch.Tensor):
        return [value.double()]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in values for tensor in tensors_of(part)]


def same(found, expected, what):
    found, expected = tensors_of(found), tensors_of(expected)
    assert len(found) == len(expected), what
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, msg=lambda text: f"{what}: {text}")


def compare(folder):
    """In one of several processes: every case sharded and not, the state of the first process kept in the folder."""
    team = present_team()
    for case in CASES:
        whole, shared = Run(case, shard=False), Run(case, shard=True, seed=3 + team.rank)  # the leader's start counts
        expected, found = [], []
        for run, results in ((whole, expected), (shared, found)):
            run.steps(0, STEPS // 2)
            results += run.outcome()
            if team.leads and run is shared:
                torch.save(found[1], folder / f"{case} of {team.world_size}.pt")
            run.steps(STEPS // 2, STEPS)
            results += run.outcome()
        for half in (0, 2):
            same(found[half], expected[half], case)
            if team.leads:
                same(found[half + 1], expected[half + 1], f"state of {case}")


def resume(folder, size):
    """In any number of processes: go on from the states that `size` processes have kept, as if nothing had happened."""
    for case in CASES:
        undisturbed, resumed = Run(case, shard=False), Run(case, shard=True, seed=5)
        undisturbed.steps(0, STEPS)
        resumed.solver.load_state_dict(torch.load(folder / f"{case} of {size}.pt", weights_only=True))
        resumed.steps(STEPS // 2, STEPS)
        same(resumed.outcome()[0][1:], undisturbed.outcome()[0][1:], case)


def memory(_):
    """In one of several processes: what is kept for the variables and the optimizer, over the weights."""
    run = Run("PMF on planes", shard=True)
    run.steps(0, 1)
    solver = run.solver
    state = [t for values in solver.driver.state.values() for t in values.values() if t.dim()]
    planes = [solver.family(block).u for block, _ in solver.items()]
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*solver.variables, *planes, *state]
    }
    kept = sum(storages.values()) / (8 * len(solver.labelling))
    fair = 16 / present_team().world_size  # x, u and Adam's two, four planes each
    assert kept <= 1.05 * fair, kept


@pytest.fixture
def team(python):
    def run(processes, *arguments):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        started = [python.start(__file__, rank, processes, port, *arguments) for rank in range(processes)]
        for done in [process.wait() for process in started]:
            assert done.returncode == 0, done.stderr

    return run


def test_shared_out_variables_end_where_kept_ones_do_and_any_number_of_processes_goes_on(team, tmp_path):
    team(2, "compare", tmp_path)
    team(4, "compare", tmp_path)
    team(2, "resume", tmp_path, 4)
    resume(tmp_path, 2)  # alone


def test_every_process_keeps_its_part_only(team, tmp_path):
    team(4, "memory", tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_alone_it_changes_nothing(case):
    whole, alone = Run(case, shard=False), Run(case, shard=True)
    for run in (whole, alone):
        run.steps(0, 2)
    same(alone.outcome(), whole.outcome(), case)


@pytest.mark.parametrize(("m", "processes"), [(0, 2), (5, 4), (64, 4), (1000, 3), (1001, 8)])
def test_parts_cover_a_vector_once(m, processes):
    teams = [Team(rank, processes) for rank in range(processes)]
    for first, last in [(0, m), (m // 3, m // 2), (m // 2, m)]:
        spans = [Shards(m, team).span(first, last) for team in teams]
        covered = [place for start, stop in spans for place in range(start, stop)]
        assert covered == list(range(first, last))


@pytest.fixture
def as_one_of_two(monkeypatch):
    """This process believes that it has a peer."""
    for module in ("labelling.labelling", "inference.distributed"):
        monkeypatch.setattr(f"mrfquant.{module}.present_team", lambda: Team(0, 2))
    monkeypatch.setattr(Team, "broadcast", lambda *_: None)


PAIRWISE = functools.partial(mq.MeanField, energy=mq.PairwiseEnergy())
TREES = functools.partial(mq.MeanField, entropy=mq.TreeEntropy())
SGD = functools.partial(torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("solver", "optimizer", "message"),
    [
        (mq.StraightThrough, SGD, "StraightThrough does not say that it treats each weight by itself"),
        (PAIRWISE, SGD, "PairwiseEnergy does not say that it treats each weight by itself"),
        (TREES, SGD, "TreeEntropy works on whole layers"),
        (mq.MirrorDescent, torch.optim.Adafactor, "Adafactor may not: take one of Adam, "),
        (mq.MirrorDescent, mq.ByShape(SGD, SGD), "ByShape drives whole matrices"),
    ],
)
def test_what_needs_whole_layers_is_refused(as_one_of_two, solver, optimizer, message):
    labelling = mq.Labelling(network(0), TWO, scale="layer")
    with pytest.raises(mq.BadInput, match=message):
        solver(labelling, optimizer, shard=True)


if __name__ == "__main__":
    rank, size, port, task, folder, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.distributed.init_process_group("gloo", rank=int(rank), world_size=int(size))
    {"compare": compare, "resume": resume, "memory": memory}[task](Path(folder), *rest)
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads do not always survive the interpreter's end
