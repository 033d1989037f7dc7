"""Layers are rounded to paths through a trellis: exact conditional modes, and energies that only fall."""

import copy
import itertools

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.errors import BadInput
from mrfquant.rounding.chains import Chains, RoundChains
from mrfquant.rounding.problem import LayerProblem
from mrfquant.rounding.solvers import RoundGPTQ, RoundICM


def problem(levels, n=5, rows=4, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(4 * n, n, generator=random) @ torch.randn(n, n, generator=random)
    w = torch.randn(n, rows, generator=random) * torch.rand(rows, generator=random).exp()
    every = torch.zeros(n, dtype=torch.int64)
    return LayerProblem(w, x.T @ x / len(x), torch.tensor(levels.values), torch.ones_like(w), every)


def every_path(levels, length):
    streams = torch.arange(2 ** (levels.memory + levels.bits * (length - 1)))
    shifts = torch.arange(levels.bits * (length - 1), -1, -levels.bits)
    return streams >> shifts[:, None] & (len(levels) - 1)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("bits", "memory"), [(1, 3), (2, 4)])
def test_after_a_sweep_no_other_path_of_a_column_is_better(bits, memory, apart):
    levels = mq.Trellis(bits, memory)
    chains = Chains(problem(levels), levels, apart)
    chains.start()
    for _ in range(30):
        chains.sweep()
    states, every = chains.states, every_path(levels, 4)
    best = chains.energy()
    for j in range(len(states)):
        allowed = torch.ones(every.shape[1], dtype=torch.bool)
        if not apart and j > 0:
            allowed &= every[0] >> bits == states[j - 1, -1] & (levels.shared - 1)
        if not apart and j + 1 < len(states):
            allowed &= every[-1] & (levels.shared - 1) == states[j + 1, 0] >> bits
        assert (every[:, allowed] == states[j, :, None]).all(0).any()
        values = chains.table[states] * chains.problem.scale
        for path in every[:, allowed].T:
            trial = values.clone()
            trial[j] = chains.table[path] * chains.problem.scale[j]
            assert chains.problem.energy(trial).sum() >= best * (1 - 1e-5)


@pytest.mark.parametrize("apart", [True, False])
def test_sweeps_never_raise_the_energy_and_paths_stay_paths(apart):
    levels = mq.Trellis(2, 8)
    chains = Chains(problem(levels, 40, 30), levels, apart)
    chains.start()
    energies = [chains.energy()]
    for _ in range(6):
        chains.sweep()
        energies.append(chains.energy())
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(energies))
    assert energies[-1] < 0.99 * energies[0]
    assert levels.follows(chains.states.T if apart else chains.states.reshape(-1)).all()


def network():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, groups=2),
        nn.Flatten(),
        nn.Linear(128, 160),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.Linear(160, 20), nn.Linear(20, 4), nn.Linear(4, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2)
    return model, [torch.randn(100, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.fixture(scope="module")
def rounded():
    """By greedy paths, by icm, and by icm on single levels."""
    found = {}
    for name, bits, solver in [("greedy", mq.Trellis(2, 8), "gptq"), ("icm", mq.Trellis(2, 8), "icm"), ("2", 2, "icm")]:
        model, batches = network()
        found[name] = mq.round_network(model, batches, bits, solver, progress=False, overrides={"[78]": 2})
    return found


def test_icm_has_less_energy_than_greedy_paths_on_every_layer():
    random = torch.Generator().manual_seed(0)
    model, levels = network()[0], mq.Trellis(2, 8)
    for name in ("0", "4", "6"):
        w = model.get_parameter(f"{name}.weight").detach()
        x = torch.randn(2 * w[0].numel(), w[0].numel(), generator=random)
        a, target = x.T @ x / len(x), w.flatten(1).T.contiguous()
        greedy, icm = (
            RoundChains.by(solver, levels).round(target, a, w.shape)[1] for solver in (RoundGPTQ(), RoundICM())
        )
        assert icm < greedy


def test_chains_have_less_energy_than_levels(rounded):
    for layer in rounded["icm"].layers:
        if layer.name in ("0.weight", "4.weight"):
            single = next(other for other in rounded["2"].layers if other.name == layer.name)
            assert layer.relative < single.relative


def test_weights_that_chains_do_not_suit_have_levels_and_are_told():
    model, batches = network()
    found = mq.round_network(model, batches, mq.Trellis(2, 8), progress=False)
    told = "\n".join(found.notes)
    assert "8.weight has even levels of 2 bits in the place of a trellis: it has 16 weights, fewer than the 64" in told
    assert "7.weight has even levels of 2 bits in the place of a trellis: its 4 rows are fewer than the 9 that" in told
    assert "2.weight has even levels of 2 bits in the place of a trellis: a chain goes through rows" in told
    assert found.levels["7.weight"] == mq.uniform(2)
    assert found.levels["4.weight"] == mq.Trellis(2, 8)


def test_the_file_gives_the_same_network(rounded, tmp_path):
    found = rounded["icm"]
    found.save(tmp_path / "model")
    loaded = mq.load(tmp_path / "model", network()[0])
    for name, p in found.model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), p), name
    packed = loaded.packed_network.parameters["4.weight"]
    assert 8 * packed.nbytes / packed.numel < 2 + 16 / 128 + 8 / 160 + 6 / 160 + 0.01
    assert torch.equal(found.labels["4.weight"], packed.labels())


def test_a_call_goes_on_where_it_was_interrupted(rounded, tmp_path):
    model, batches = network()
    seen = 0

    def forward(model, batch):
        nonlocal seen
        seen += 1
        if seen == 20:
            raise KeyboardInterrupt
        return model(batch)

    settings = {"progress": False, "folder": tmp_path / "kept", "overrides": {"[78]": 2}}
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyboardInterrupt):
        mq.round_network(model, batches, mq.Trellis(2, 8), forward=forward, **settings)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert list((tmp_path / "kept").glob("*.safetensors"))
    mq.round_network(model, batches, mq.Trellis(2, 8), **settings)
    for name, p in rounded["icm"].model.named_parameters():
        assert torch.equal(model.get_parameter(name), p)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"solver": "mean_field"}, "the solver mean_field finds single labels: for a trellis take icm, or gptq"),
        ({"group_size": 16}, "leave out group_size, zero_point and bound"),
        ({"zero_point": True}, "leave out group_size, zero_point and bound"),
        ({"bound": True}, "leave out group_size, zero_point and bound"),
    ],
    ids=str,
)
def test_settings_of_single_labels_are_refused(settings, told):
    model, batches = network()
    with pytest.raises(BadInput, match=told):
        mq.round_network(model, batches, mq.Trellis(2, 8), progress=False, **settings)


def test_rows_of_zeros_are_no_trouble():
    model = nn.Sequential(nn.Linear(32, 16))
    with torch.no_grad():
        model[0].weight[3] = 0
    mq.round_network(model, [torch.randn(100, 32)], mq.Trellis(2, 6), progress=False)
    assert model[0].weight.isfinite().all()
    assert model[0].weight[3].abs().max() < 1e-3
