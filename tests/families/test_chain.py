"""Chains agree with the enumeration of their paths, train, resume, and are packed as bits."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.errors import BadInput
from mrfquant.families import Chain, family_of
from mrfquant.families.base import Gradient
from mrfquant.families.chain import ChainInWells
from mrfquant.labelling import Block
from mrfquant.labelling.scales import RunScales
from mrfquant.labelling.trellis import FEWEST_ROWS, chain_length
from mrfquant.packing import load, pack_model
from mrfquant.packing.chains import PackedChains
from mrfquant.pairwise import chains
from mrfquant.projections import Softmax

CASES = [(1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
BETAS = [0.3, 3.0, 50.0]
STRAIGHT = Softmax("straight_through")


def family(levels, shape=(2, 3), layout=None, scale=None, form="line"):
    like = torch.empty(shape) if layout is None else layout
    w = torch.zeros(like.numel())
    scales = None if scale is None else RunScales(scale, torch.arange(1, len(w) + 1), 0, len(w))
    return family_of(Block(levels, 0, w, w.clone(), scales, layouts=(like,)), STRAIGHT, form, 0.3)


def paths(levels, length):
    """All paths: (count, length). State t is the window of `memory` bits from bit t * bits of a stream on."""
    streams = torch.arange(2 ** (levels.memory + levels.bits * (length - 1)))
    shifts = torch.arange(levels.bits * (length - 1), -1, -levels.bits)
    return streams[:, None] >> shifts & (len(levels) - 1)


def enumerated(levels, x, beta):
    """All paths and their probabilities, in double precision."""
    every = paths(levels, len(x))
    energy = (x.double() - levels.table.double()[every]).square().sum(1) * (beta / 2)
    return every, (-energy).softmax(0)


def chain_order(x, shape=(2, 3)):
    return x.view(shape).T.flatten()


def draw(count=6, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(("bits", "memory"), CASES)
class TestAgainstEnumeration:
    @pytest.fixture
    def problem(self, bits, memory, beta):
        levels, x = mq.Trellis(bits, memory), draw()
        made = family(levels, scale=torch.arange(1.0, 7.0))
        return made, x, made.distribution(x, beta), *enumerated(levels, chain_order(x), beta)

    def test_means_and_variances(self, problem, beta):
        made, x, found, every, p = problem
        level = made.trellis.table.double()[every]
        mean = p @ level
        variance = p @ (level - mean).square()
        made.write(x, beta)
        scale = chain_order(made.block.scale)
        for given in (made.block.w, found.mean()):
            torch.testing.assert_close(chain_order(given), (mean * scale).float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            chain_order(found.variance()), (variance * scale.square()).float(), rtol=1e-3, atol=1e-4
        )

    def test_probabilities_of_labels(self, problem):
        made, _, found, every, p = problem
        labels = made.trellis.label_of_state[every]
        expected = torch.stack([(p[:, None] * (labels == label)).sum(0) for label in range(len(made.trellis))])
        u = found.probabilities()
        given = torch.stack([chain_order(plane) for plane in u])
        torch.testing.assert_close(given, expected.float(), rtol=1e-3, atol=1e-5)
        assert torch.equal(found.decided(0.6), u.amax(0) >= 0.6)

    def test_entropies_of_weights_add_up_to_that_of_the_chain(self, problem):
        _, _, found, _, p = problem
        assert found.entropy().sum().item() == pytest.approx(torch.special.entr(p).sum().item() / math.log(2), abs=1e-4)

    def test_mode(self, problem, beta):
        made, x, _, every, p = problem
        labels = chain_order(made.labels(x, beta))
        assert torch.equal(labels.long(), made.trellis.label_of_state[every[p.argmax()]])

    def test_frequencies_of_samples(self, problem, beta):
        made, x, _, every, p = problem
        count = 4000
        draws = torch.rand(count, 6, generator=torch.Generator().manual_seed(0))
        table, order = made.trellis.table, chain_order(x)[:, None].expand(-1, count).contiguous()
        drawn = chains.sampled_paths(order, table, made.trellis.bits, beta, draws.T.contiguous())
        code = len(made.trellis) ** torch.arange(6)
        found = torch.zeros(len(p), dtype=torch.float64)
        number = {key: i for i, key in enumerate((every * code).sum(1).tolist())}
        for key, times in zip(*(drawn.T * code).sum(1).unique(return_counts=True), strict=True):
            found[number[key.item()]] = times.item() / count
        deviation = (p * (1 - p) / count).sqrt()
        assert ((found - p).abs() < 5 * deviation + 2 / count).all()
        labels = made.sampled(x, beta, torch.rand(6))
        assert made.trellis.check_path(chain_order(labels), "a chain") is not None


@pytest.mark.parametrize("beta", [0.5, 20.0, 1e3])
@pytest.mark.parametrize(("bits", "memory"), [(1, 6), (2, 8), (4, 6)])
def test_compiled_loops_are_torch_operations(bits, memory, beta):
    pytest.importorskip("numba")
    table, factor = mq.Trellis(bits, memory).table, chains._factor(beta)
    x, draws = draw(150).view(50, 3), torch.rand(50, 3, generator=torch.Generator().manual_seed(2))
    exact = chains.by_torch(x.double(), table.double(), bits, factor, True)
    for given in (chains.by_loops(x, table, bits, factor, True), chains.by_torch(x, table, bits, factor, True)):
        torch.testing.assert_close(given[0], exact[0].float(), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(given[1], exact[1].float(), rtol=0, atol=3e-4)
    states = chains.sampled_by_loops(x, table, bits, factor, draws)
    assert torch.equal(states, chains.sampled_by_torch(x.double(), table.double(), bits, factor, draws.double()))


@pytest.mark.parametrize("x", [1.0, 1e4, -1e4], ids="x = {}".format)
def test_large_beta_decides_for_the_mode(x):
    levels = mq.Trellis(1, 6)
    made = family(levels, (16, 8))
    far = draw(128) + x
    made.write(far, 1e4)
    found = made.distribution(far, 1e4)
    assert made.block.w.isfinite().all()
    assert found.entropy().isfinite().all()
    torch.testing.assert_close(made.block.w, made.block.q[made.labels(far, 1e4)], atol=0.05, rtol=0)


def test_a_start_at_weights_is_there_while_beta_is_small():
    made = family(mq.Trellis(2, 8), (32, 32))
    w = draw(1024)
    made.write(made.start_at(w, 2.0), 2.0)
    assert (made.block.w - w).square().mean() < 0.04
    started = made.start(lambda: 0.01 * w, 1.0)
    assert started.square().mean().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("beta", [1.0, 3.0, 50.0])
def test_in_wells_weights_are_the_means_of_paths_and_of_weights_around_them(beta):
    levels, scale, x = mq.Trellis(1, 4), torch.full((6,), 0.2), 0.3 * draw()
    made = family(levels, scale=scale.clone(), form="wells")
    every, p = enumerated(levels, chain_order(x) / 0.2, beta)
    c = levels.table.double()[every]
    expected = torch.empty(6, dtype=torch.float64)
    expected[chain_order(torch.arange(6))] = p @ c
    made.write(x.clone(), beta)
    fitted = torch.where(x * expected > 0, x / expected * (beta / (1 + beta)), scale)  # a scale for each weight
    torch.testing.assert_close(made.block.scales.values, fitted.float(), rtol=1e-4, atol=1e-6)
    mean = x / beta + (1 - 1 / beta) * fitted * expected
    torch.testing.assert_close(made.block.w, mean.float(), rtol=1e-4, atol=1e-6)
    if beta == 1:
        torch.testing.assert_close(made.block.w, x)
    made.block.scales.values.copy_(scale)
    distribution = made.distribution(x, beta)
    mean = x / beta + (1 - 1 / beta) * 0.2 * expected
    torch.testing.assert_close(distribution.mean(), mean.float(), rtol=1e-4, atol=1e-6)
    of_paths = torch.empty(6, dtype=torch.float64)
    of_paths[chain_order(torch.arange(6))] = p @ c.square()
    variance = 0.04 * ((1 - 1 / beta) ** 2 * (of_paths - expected**2) + (1 - 1 / beta) / beta**2)
    torch.testing.assert_close(distribution.variance(), variance.float(), rtol=1e-3, atol=1e-6)


def test_from_trained_weights_paths_in_wells_change_nothing_at_first():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Conv1d(8, 16, 3))
    before = [p.detach().clone() for p in model.parameters()]
    labelling = mq.Labelling(model, mq.Trellis(1, 5), which="weights", scale="channel")
    solver = mq.MirrorDescent(labelling, lambda p: torch.optim.Adam(p, lr=0.01), start="weights")
    assert all(isinstance(solver.family(block), ChainInWells) for block in labelling.blocks)
    for p, q in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), q, atol=1e-7, rtol=0)


def test_chains_run_along_the_outputs_of_each_input_in_any_memory_format():
    levels, like = mq.Trellis(1, 4), torch.empty(4, 3, 2, 2).to(memory_format=torch.channels_last)
    plain, last = family(levels, like.shape), family(levels, layout=like)
    x = torch.randn(like.shape)
    in_memory = torch.empty_like(like).copy_(x)
    made = [plain.labels(x.flatten(), 1.0), last.labels(in_memory.permute(0, 2, 3, 1).flatten(), 1.0)]
    assert torch.equal(made[0].view(like.shape), made[1].view(4, 2, 2, 3).permute(0, 3, 1, 2))
    levels.check_path(made[0].view(4, 12).T.flatten(), "a chain")
    assert chain_length((FEWEST_ROWS, 5)) == FEWEST_ROWS
    assert chain_length((4, 3, 2, 2)) == 48


def test_what_does_not_go_with_chains_is_refused():
    levels = mq.Trellis(1, 4)
    made = family(levels)
    with pytest.raises(BadInput, match="trained straight through"):
        Chain(made.block, Softmax("exact"))
    with pytest.raises(BadInput, match="shard cuts"):
        family_of(made.block.narrow(0, 3), STRAIGHT, "line", 0.3)
    with pytest.raises(BadInput, match="costs of single labels"):
        made.pull_back(Gradient(made.block.g, costs=torch.zeros(1, 16)), draw(), 1.0, 1.0)
    with pytest.raises(BadInput, match="with a trellis"):
        mq.Labelling(nn.Linear(64, 4), levels, which="weights", scale="group")


def model_and_solver(rows=32, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, rows), nn.ReLU(), nn.Linear(rows, 2), nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"3.weight has|2.weight, 3.weight have|even levels"):
        labelling = mq.Labelling(model, mq.Trellis(1, 6), which="weights", scale="channel")
    beta = mq.GeometricTo(1e3)
    solver = mq.MirrorDescent(labelling, lambda p: torch.optim.Adam(p, lr=0.02), beta, **settings)
    solver.prepare(200)
    return model, solver


def train(model, solver, steps, seed=0):
    random, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        x = torch.randn(64, 20, generator=random)
        loss = functional.cross_entropy(model(x), (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).long())
        loss.backward()
        solver.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("rows", [32, FEWEST_ROWS], ids=["one chain", "a chain an input"])
@pytest.mark.parametrize(
    "settings", [{}, {"start": "weights"}, {"learn_scale": True, "start": "weights", "reach": 1.0}], ids=str
)
def test_it_trains_and_packs(rows, settings, tmp_path):
    model, solver = model_and_solver(rows, **settings)
    first = solver.diagnostics()["entropy"]
    losses = train(model, solver, 200)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert solver.diagnostics()["entropy"] < first / 4
    with solver.sampled(torch.Generator().manual_seed(0)):
        assert model[0].weight.isfinite().all()
    solver.finalize()
    packed = pack_model(model, solver.labelling)
    packed.write(tmp_path / "model.safetensors")
    first_layer = packed.parameters["0.weight"]
    assert isinstance(first_layer, PackedChains)
    assert first_layer.data.numel() <= (20 * rows + 20 * 5) / 8 + 1  # a bit a weight, and the starts
    loaded = load(tmp_path / "model.safetensors", copy.deepcopy(model))
    for name, p in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), p), name
    state = model.state_dict()
    state["0.weight"] = state["0.weight"].flip(0)
    with pytest.raises(BadInput, match=r"0.weight: .*path"):
        pack_model(model, solver.labelling, state)


def test_it_resumes_to_the_bit():
    model, whole = model_and_solver()
    train(model, whole, 10)
    expected = train(model, whole, 10, seed=1)
    model, first = model_and_solver()
    train(model, first, 10)
    model, second = model_and_solver()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert train(model, second, 10, seed=1) == expected


@pytest.mark.parametrize("solver", [mq.StraightThrough, mq.BinaryConnect, mq.ProxQuant])
def test_solvers_that_round_each_weight_by_itself_are_refused(solver):
    labelling = mq.Labelling(torch.nn.Linear(16, 16), mq.Trellis(1, 4), which="weights", scale="channel")
    with pytest.raises(mq.BadInput, match="labels of a trellis are paths"):
        solver(labelling, lambda p: torch.optim.Adam(p, lr=0.01))
