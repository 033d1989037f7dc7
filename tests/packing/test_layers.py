"""Packed layers compute what the float layers do, from packed bytes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.errors import BadInput
from mrfquant.kernels import packed as kernel
from mrfquant.models import LeNet5
from mrfquant.packing import layers
from mrfquant.packing.bits import pack
from mrfquant.packing.layers import PackedLinear, PackedWeight, pack_layers
from mrfquant.packing.parameter import PackedParameter

LEVELS = {
    "1 bit": (-1.0, 1.0),
    "2 bits": (-2.0, -1.0, 1.0, 2.0),
    "3 levels": (-1.0, 0.0, 1.0),
    "5 levels": (-0.7, -0.3, 0.0, 0.3, 0.7),
    "17 levels": tuple(i / 8 for i in range(-8, 9)),
    "1 level": (0.5,),
}
levels_of_all_kinds = pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
scales = pytest.mark.parametrize("scales", [None, 1, "rows", "runs", "rows and zeros", "runs and zeros"])
RUN = 5  # weights
CLOSE = {"rtol": 1e-5, "atol": 1e-4}


def draw(shape, levels, scales=None, encoding="bits"):
    """Random labels as a packed parameter."""
    labels = torch.randint(len(levels), shape)
    runs = -(-labels[0].numel() // RUN)
    scales, _, zeros = str(scales).partition(" and ")
    scales = "rows" if scales == "runs" and runs == 1 else scales
    sizes = {"None": None, "1": (1,), "rows": shape[:1], "runs": (shape[0], runs)}[scales]
    scale = None if sizes is None else torch.rand(sizes) + 0.5
    data, zero = pack(labels, len(levels), encoding), torch.randn(sizes) if zeros else None
    return PackedParameter(data, shape, levels, encoding, scale, RUN if scales == "runs" else None, zero)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@levels_of_all_kinds
@scales
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 3), (37, 70), (1, 64)])
@pytest.mark.parametrize("batch", [1, 200])
def test_linear(levels, scales, outputs, inputs, batch, monkeypatch):
    weight, bias, x = draw((outputs, inputs), levels, scales), torch.randn(outputs), torch.randn(batch, inputs)
    expected = functional.linear(x, weight.values(), bias)
    for tile in (2**20, 0, 500):
        monkeypatch.setattr(layers, "TILE_WEIGHTS", tile)
        torch.testing.assert_close(PackedLinear(weight, bias)(x), expected, **CLOSE)
    assert PackedLinear(weight).weight.equal(weight.values())


def test_linear_takes_any_leading_shape():
    layer = PackedLinear(draw((4, 6), (-1.0, 1.0)))
    assert layer(torch.randn(6)).shape == (4,)
    assert layer(torch.randn(2, 3, 6)).shape == (2, 3, 4)
    assert layer(torch.randn(0, 6)).shape == (0, 4)


CONVOLUTIONS = {
    "plain": ((6, 3, 3, 3), {}),
    "strided": ((7, 5, 3, 2), {"stride": 2, "padding": (2, 1)}),
    "dilated": ((6, 4, 3, 3), {"dilation": (1, 2), "padding": 2}),
    "groups": ((12, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((9, 1, 3, 3), {"groups": 9, "padding": "same"}),
    "even": ((24, 8, 1, 1), {}),
    "circular": ((6, 3, 3, 3), {"padding": 1, "padding_mode": "circular"}),
    "reflected": ((6, 3, 4, 3), {"padding": "same", "padding_mode": "reflect"}),
    "replicated": ((6, 3, 3, 3), {"padding": "valid", "padding_mode": "replicate"}),
}


def convolution(shape, options):
    groups = options.get("groups", 1)
    return nn.Conv2d(shape[1] * groups, shape[0], shape[2:], **options)


@pytest.mark.parametrize(("shape", "options"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@scales
@levels_of_all_kinds
def test_convolution(shape, options, scales, levels):
    weight, plain = draw(shape, levels, scales), convolution(shape, options)
    x = torch.randn(2, plain.in_channels, 9, 8)
    with torch.no_grad():
        plain.weight.copy_(weight.values())
        expected = plain(x)
    packed = pack_layers(nn.Sequential(plain), {"0.weight": weight})
    assert not any(p.numel() for p in packed.parameters() if p.dim() != 1)
    assert packed(x).equal(expected)


def test_base3_is_read_too():
    weight = draw((6, 11), LEVELS["3 levels"], "rows", "base3")
    assert PackedLinear(weight).weight.equal(weight.values())


@pytest.mark.parametrize("levels", [LEVELS["1 bit"], LEVELS["3 levels"], LEVELS["2 bits"]], ids=["1", "3", "4"])
def test_product_of_bytes(levels, monkeypatch):
    """The function as numba compiles it where it is installed, and as Python runs it."""
    weight, x = draw((21, 70), levels), torch.randn(3, 70)
    packed, q = kernel.pack_rows(weight.labels(), len(levels), kernel.WORD), torch.tensor(levels)
    expected = x @ weight.values().t()
    ways = [kernel.add_products] + [f for f in [kernel.compiled()] if f is not None]
    for way in ways:
        monkeypatch.setattr(kernel, "compiled", lambda way=way: way)
        torch.testing.assert_close(kernel.product(x, packed, q), expected, **CLOSE)


def test_product_of_bytes_by_threads(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    weight, x = draw((1000, 130), (-1.0, 1.0), "rows"), torch.randn(2, 130)
    layer = PackedLinear(weight, torch.randn(1000))
    found = layer(x)
    monkeypatch.setattr(kernel, "compiled", lambda: None)
    torch.testing.assert_close(found, layer(x), **CLOSE)


def test_gradients_reach_the_input():
    x = torch.randn(2, 6, requires_grad=True)
    weight = draw((4, 6), (-1.0, 1.0))
    PackedLinear(weight)(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.values().sum(0).expand(2, 6))


def test_rows_are_the_known_encodings():
    labels = torch.randint(3, (1, 50))
    for d, encoding in ((3, "base3"), (4, "bits")):
        assert kernel.pack_rows(labels, d).flatten().equal(pack(labels, d, encoding))


def test_too_many_levels_are_refused():
    with pytest.raises(BadInput, match="256 levels"):
        PackedLinear(draw((2, 3), tuple(map(float, range(300)))))


@pytest.fixture
def lenet():
    """LeNet-5 with weights on two levels, and their packed form."""
    model = LeNet5((1, 28, 28), 10)
    with torch.no_grad():
        model(torch.randn(50, 1, 28, 28))  # running statistics
        for p in model.parameters():
            p.copy_(torch.where(p < 0, -1.0, 1.0))
    packed = {name: PackedParameter.of(p, (-1.0, 1.0)) for name, p in model.named_parameters()}
    return model.eval(), packed


def test_a_packed_network_gives_the_same_logits(lenet):
    model, packed = lenet
    model.train()
    images = torch.randn(40, 1, 28, 28)
    other = pack_layers(copy.deepcopy(model), packed)
    assert not other.training
    assert sum(isinstance(layer, PackedWeight) for layer in other.modules()) == 4
    assert not any(p.numel() for p in other.parameters() if p.dim() != 1)
    with torch.no_grad():
        for x in (images, images[:1]):
            expected = model.eval()(x)
            torch.testing.assert_close(other(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_memory_of_a_packed_network(lenet, monkeypatch):
    """Bytes are kept; of the large linear layer some rows at a time are float."""
    model, packed = lenet
    whole = sum(p.nbytes for p in model.parameters())
    model, seen, linear = pack_layers(model, packed), [], functional.linear
    monkeypatch.setattr(functional, "linear", lambda x, w, *rest: seen.append(w.numel()) or linear(x, w, *rest))
    with torch.no_grad():
        model(torch.randn(100, 1, 28, 28))
    assert sum(t.nbytes for t in (*model.parameters(), *model.buffers())) < whole / 16
    assert len(seen) > 3
    assert max(seen) <= layers.TILE_WEIGHTS


def test_what_is_not_packed_stays():
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4))
    kept = model[0], model[1]
    packed = {"2.weight": draw((4, 5), (-1.0, 1.0)), "1.weight": draw((5,), (-1.0, 1.0)), "none": draw((1, 1), (0.0,))}
    assert pack_layers(model, packed) is model
    assert (model[0], model[1]) == kept
    assert isinstance(model[2], PackedLinear)


def test_shared_layers_stay_shared():
    shared = nn.Linear(5, 5)
    model = pack_layers(nn.Sequential(shared, nn.ReLU(), shared), {"0.weight": draw((5, 5), (-1.0, 1.0))})
    assert model[0] is model[2]
    assert isinstance(model[0], PackedLinear)


def test_a_lone_layer_is_returned_packed():
    assert isinstance(pack_layers(nn.Linear(5, 4), {"weight": draw((4, 5), (-1.0, 1.0))}), PackedLinear)


def test_other_shapes_are_refused():
    with pytest.raises(BadInput, match=r"0.weight has the shape \(4, 5\), packed is \(5, 4\)"):
        pack_layers(nn.Sequential(nn.Linear(5, 4)), {"0.weight": draw((5, 4), (-1.0, 1.0))})


def test_half_precision_and_state():
    weight, x = draw((4, 6), (-1.0, 1.0), 1), torch.randn(3, 6)
    layer = PackedLinear(weight, torch.randn(4))
    other = PackedLinear(draw((4, 6), (-1.0, 1.0), 1), torch.zeros(4))
    other.load_state_dict(layer.state_dict())
    assert other(x).equal(layer(x))
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(layer.weights.packed, other.weights.packed)


def test_benchmark(monkeypatch):
    from mrfquant.benchmarks import packed
    from mrfquant.benchmarks.timing import Options

    monkeypatch.setattr(packed, "SIZE", 256)
    monkeypatch.setattr(packed, "BATCH", 2)
    found = dict(packed.measure_packed(Options(seconds=0), width=0.125))
    bits = ["lenet5 from bits, batch 2", "resnet18 from bits, batch 2"]
    assert list(found) == ["linear 256, batch 1", "linear 256, batch 2", *bits]
    for figures in found.values():
        assert figures["packed"]["ratio"] > 0
        assert figures["kept"]["ratio"] < 0.1


def test_a_layer_on_another_device_is_one_tile(monkeypatch):
    """On the CPU it is many: starting an operation costs little there."""
    monkeypatch.setattr(layers, "TILE_WEIGHTS", 64)
    layer, tiles = PackedLinear(draw((64, 32), (-1.0, 1.0))), []
    monkeypatch.setattr(functional, "linear", lambda x, w: tiles.append(w.shape) or x @ w.T)
    layer(torch.zeros(50, 32))
    assert tiles == [(2, 32)] * 32
    tiles.clear()
    assert layer.to("meta")(torch.zeros(50, 32, device="meta")).is_meta
    assert tiles == [(64, 32)]
