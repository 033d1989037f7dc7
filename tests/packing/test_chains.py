"""Chains are stored as bits and come back to the bit; what does not fit together is refused."""

import dataclasses

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.errors import BadInput
from mrfquant.packing import PackedNetwork, chains
from mrfquant.packing.chains import PackedChains
from mrfquant.packing.layers import pack_layers

CASES = [(1, 2), (1, 8), (2, 8), (2, 12), (3, 16), (4, 5)]


def walk(levels, count, seed=0):
    """The states of a random path."""
    random = torch.Generator().manual_seed(seed)
    states = [int(torch.randint(len(levels), (), generator=random))]
    for bits in torch.randint(levels.branches, (count - 1,), generator=random).tolist():
        states.append((states[-1] << levels.bits | bits) % len(levels))
    return torch.tensor(states)


def packed(levels, shape=(7, 3, 4), apart=True):
    rows, n = shape[0], 12
    states = torch.stack([walk(levels, rows, j) for j in range(n)]) if apart else walk(levels, n * rows).view(n, rows)
    random = torch.Generator().manual_seed(1)
    columns = torch.randint(-9, 9, (n if apart else 1,), generator=random).to(torch.int8)
    scale = torch.rand(rows, generator=random) + 0.5
    return PackedChains.of(states, shape, levels, rows if apart else rows * n, scale, columns), states


@pytest.mark.parametrize("apart", [True, False], ids=["a chain an input", "one chain"])
@pytest.mark.parametrize(("bits", "memory"), CASES)
def test_states_survive_and_take_few_bits(bits, memory, apart):
    levels = mq.Trellis(bits, memory)
    found, states = packed(levels, apart=apart)
    assert torch.equal(found.states(), states)
    assert torch.equal(found.labels(), levels.label_of_state[states].T.reshape(7, 3, 4).int())
    count = 12 if apart else 1
    assert found.data.numel() == -(-(84 * bits + count * (memory - bits)) // 8)


def test_the_stream_is_what_the_page_says():
    levels = mq.Trellis(2, 4)
    found, states = packed(levels)
    bits = "".join(f"{byte:08b}" for byte in found.data.tolist())
    for j, path in enumerate(states.tolist()):
        chain = bits[j * (2 + 2 * 7) :]
        assert [int(chain[2 * t : 2 * t + 4], 2) for t in range(7)] == path


@pytest.mark.parametrize("apart", [True, False], ids=["a chain an input", "one chain"])
@pytest.mark.parametrize(("bits", "memory"), CASES)
def test_weights_are_levels_in_the_basis_with_and_without_numba(bits, memory, apart, monkeypatch):
    found, states = packed(mq.Trellis(bits, memory), apart=apart)
    levels = found.trellis.table[states].double() * found.scale.double()
    expected = mq.labelling.mixing.Mixing(found.columns).unmixed(levels).reshape(7, 3, 4).float()
    values = found.values()
    torch.testing.assert_close(values, expected)
    monkeypatch.setattr(chains.dispatch, "loops", lambda module: None)
    assert torch.equal(found.values(), values)


def network(found):
    model = nn.Sequential(nn.Conv2d(3, 7, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(found.values())
    return model


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("apart", [True, False], ids=["a chain an input", "one chain"])
def test_a_file_gives_the_same_weights(apart, compress, tmp_path):
    found, _ = packed(mq.Trellis(2, 8), (7, 3, 2, 2), apart)
    model = network(found)
    mq.pack_model(model, {"0.weight": found.record()}).write(tmp_path / "model", compress)
    read = PackedNetwork.read(tmp_path / "model").parameters["0.weight"]
    assert torch.equal(read.data, found.data)
    assert (read.trellis, read.chain, read.nbytes) == (found.trellis, found.chain, found.nbytes)
    loaded = mq.load(tmp_path / "model", nn.Sequential(nn.Conv2d(3, 7, 2, bias=False)))
    assert torch.equal(loaded[0].weight, model[0].weight)


def test_weights_that_are_not_those_of_the_chains_are_refused():
    found, _ = packed(mq.Trellis(2, 8), (7, 3, 2, 2))
    model = network(found)
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] += 1e-6
    with pytest.raises(BadInput, match=r"0\.weight: its weights are not those of its chains"):
        mq.pack_model(model, {"0.weight": found.record()})


def test_what_is_no_path_is_refused():
    levels = mq.Trellis(2, 8)
    with pytest.raises(BadInput, match="no paths through a trellis of 2 bits and memory 8"):
        PackedChains.of(torch.tensor([[0, 0, 200]]), (3, 1), levels, 3, torch.ones(3), torch.zeros(1).to(torch.int8))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chain": 12}, r"chains of 12 weights, expected 7 \(a row of each input\) or 84"),
        ({"chain": 84}, "chains of 84 among 84 weights take 22 bytes, given are"),
        ({"data": torch.zeros(5, dtype=torch.uint8)}, "take 30 bytes, given are"),
        ({"scale": torch.ones(7).double()}, "expected 7 of torch.float16 or torch.float32"),
        ({"columns": torch.zeros(3, dtype=torch.int8)}, "expected 12 or 1 or 0 of torch.int8"),
    ],
    ids=["chain", "other chain", "data", "scale", "columns"],
)
def test_parts_that_do_not_fit_together_are_refused(change, told):
    found, _ = packed(mq.Trellis(2, 8))
    with pytest.raises(BadInput, match=told):
        dataclasses.replace(found, **change)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ([[2, 8], "trellis", {"0.weight": [7, 3, 2, 2]}, 12], "chains of 12 weights, expected 7"),
        ([[2, 8], "trellis", {"0.weight": [7, 3, 2, 2]}], "invalid trellis"),
        ([[2, 17], "trellis", {"0.weight": [7, 3, 2, 2]}, 7], "Trellis.memory = 17, expected a whole number from 3"),
        ([[2, 9], "trellis", {"0.weight": [7, 3, 2, 2]}, 7], "take 32 bytes, given are"),
        ([[2], "trellis", {"0.weight": [7, 3, 2, 2]}, 7], "invalid trellis"),
        ([[2, 8], "trellis", {"0.weight": [84]}, 7], "without rows or their scales"),
    ],
    ids=["wrong chain", "no chain", "memory", "other memory", "no memory", "a row"],
)
def test_a_file_that_announces_something_else_is_refused(blocks, told, tmp_path, monkeypatch):
    found, _ = packed(mq.Trellis(2, 8), (7, 3, 2, 2))
    monkeypatch.setattr(mq.packing.file, "_blocks", lambda *_: [blocks])
    mq.pack_model(network(found), {"0.weight": found.record()}).write(tmp_path / "model")
    with pytest.raises(BadInput, match=told):
        PackedNetwork.read(tmp_path / "model")


def test_other_forms_refuse_chains_in_a_sentence():
    found, _ = packed(mq.Trellis(2, 8), (7, 3, 2, 2))
    model = network(found)
    with pytest.raises(BadInput, match=r"0\.weight is stored as chains of a trellis, which cannot be computed with as"):
        pack_layers(model, {"0.weight": found})
    pytest.importorskip("onnx_ir")
    with pytest.raises(BadInput, match=r"0\.weight is stored as chains of a trellis, which cannot be written as ONNX"):
        mq.export_onnx(
            model, "no", [torch.randn(1, 3, 4, 4)], packed=mq.pack_model(model, {"0.weight": found.record()})
        )
