"""8-bit activations: exact weights, batch norm folded, operators that are fused, outputs close to those in float."""

import collections
import functools

import numpy as np
import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.errors import BadInput
from mrfquant.models import LeNet5
from mrfquant.packing.bits import pack
from mrfquant.packing.integers import Codes, IntegerWeight, integer_levels
from mrfquant.packing.networks import pack_model
from mrfquant.packing.onnx_export import to_onnx
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.runtime import RuntimeNetwork, check_same

BINARY, TERNARY, THIRDS = (-1.0, 1.0), (-1.0, 0.0, 1.0), (-1.0, -1 / 3, 1 / 3, 1.0)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("levels", "integers", "step"),
    [
        (BINARY, [-1, 1], 1.0),
        ((-0.5, 0.0, 0.5), [-1, 0, 1], 0.5),
        (THIRDS, [-3, -1, 1, 3], 1 / 3),
        ((-1.0, -0.3, 0.1, 1.0), [-10, -3, 1, 10], 0.1),
        ((0.0,), [0], 1.0),
    ],
)
def test_levels_are_multiples_of_a_step(levels, integers, step):
    found, by = integer_levels(levels)
    assert found.tolist() == integers
    assert by == pytest.approx(step)


def test_other_levels_are_not():
    assert integer_levels((-1.0, 2**-0.5, 1.0)) is None


def draw(shape, levels, scale="rows", encoding="bits", group_size=None, magnitude=1.0):
    """Random labels with random scales."""
    runs = None if group_size is None else -(-shape[1] // group_size)
    size = {"rows": shape[:1], "one": (1,), "runs": (shape[0], runs)}[scale]
    data = pack(torch.randint(len(levels), shape), len(levels), encoding)
    return PackedParameter(data, shape, levels, encoding, magnitude * (0.5 + torch.rand(size)), group_size)


@pytest.mark.parametrize("levels", [BINARY, TERNARY, THIRDS, (0.0, 1.0)])
def test_integers_take_factors_of_any_sign(levels):
    parameter = draw((6, 2, 3), levels, encoding="base3" if len(levels) == 3 else "bits")
    weight = IntegerWeight.of(parameter)
    np.testing.assert_allclose(weight.values, parameter.values().numpy(), rtol=1e-6)
    factor = np.array([1, -2, 0, 0.5, -1, 3], np.float32)
    weight.fold(factor)
    weight.settle()
    np.testing.assert_allclose(weight.values, parameter.values().numpy() * factor[:, None, None], rtol=1e-6)
    assert (weight.scale > 0).all()
    assert np.array_equal(weight.packed().values().numpy(), weight.integers)


def network(levels=BINARY):
    """Two convolutions, one of them in a residual block, and linear layers; with affine batch norm of both signs."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return torch.relu(x + self.norm(self.conv(x)))

    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), Block(), nn.Flatten()),
        *(nn.Linear(8 * 13 * 13, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)),
    )
    packed = {}
    for name, p in model.named_parameters():
        if p.dim() > 1:
            packed[name] = draw(tuple(p.shape), levels)
            p.data = packed[name].values()
        elif "norm" in name or name.startswith(("1.", "7.")):
            nn.init.normal_(p)
    model(torch.randn(64, 1, 28, 28))
    return model.eval(), packed


def images(count=3, size=32):
    return [((torch.randn(size, 1, 28, 28),), {}) for _ in range(count)]


def needs_onnx():
    for module in ("onnxscript", "onnxruntime"):
        pytest.importorskip(module)


def operators(data, tmp_path):
    """What ONNX Runtime makes of a file: its operators, counted, and the types of its initializers by name."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimized.onnx"), 3
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    return collections.Counter(node.op_type for node in graph.node), graph.initializer


@pytest.mark.parametrize("levels", [BINARY, pytest.param(THIRDS, marks=pytest.mark.slow)], ids=["two", "four"])
def test_a_network_in_eight_bits(levels, tmp_path):
    needs_onnx()
    model, packed = network(levels)
    exported = to_onnx(model, packed, images()[0][0], calibration=images())
    assert exported.floats == []
    fused = RuntimeNetwork(exported.data)
    ((x,), _) = images(1, 64)[0]
    with torch.no_grad():
        expected, found = model(x), fused(x)
    assert (found - expected).std() < 0.05 * expected.std()
    check_same(fused, RuntimeNetwork(exported.data, optimized=False), (x,), within=0.02)
    counts, initializers = operators(exported.data, tmp_path)
    expected = {"QuantizeLinear": 1, "QLinearConv": 2, "NhwcMaxPool": 1, "QLinearAdd": 1, "Reshape": 1, "QGemm": 2}
    assert counts == {**expected, "Transpose": 2}, "all of it in integers, batch norm and ReLU within"
    stored = [t for t in initializers if len(t.dims) > 1]
    assert {t.data_type for t in stored} == {3}, "int8: a byte each in memory"
    parameters = sum(p.nbytes for p in packed.values())
    assert len(exported.data) < parameters + 4 * 2 * (8 + 8 + 32 + 10) + 5500


@pytest.mark.slow
def test_what_does_not_fit_stays_float():
    needs_onnx()
    model, packed = network()
    del packed["0.weight"]
    packed["6.weight"] = draw((32, 8 * 13 * 13), (-1.0, 2**-0.5, 1.0))
    model[6].weight.data = packed["6.weight"].values()
    exported = to_onnx(model, packed, images()[0][0], calibration=images())
    assert exported.floats == ["0.weight", "6.weight"]
    ((x,), _) = images(1, 64)[0]
    with torch.no_grad():
        expected = model(x)
        assert (RuntimeNetwork(exported.data)(x) - expected).std() < 0.05 * expected.std()


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 24)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize(
    ("levels", "scale", "bits"), [(BINARY, "rows", 2), (TERNARY, "one", 2), (THIRDS, "rows", 4), (TERNARY, "runs", 2)]
)
def test_codes_are_the_weights(levels, scale, bits):
    parameter = draw((10, 96), levels, scale, group_size=32 if scale == "runs" else None)
    codes = Codes.of(parameter)
    assert codes.bits == bits
    scales = np.broadcast_to(codes.scale, (10, 96 // codes.block)).repeat(codes.block, 1)
    np.testing.assert_allclose(
        (codes.parameter.values().numpy() - 2 ** (bits - 1)) * scales, parameter.values(), rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(10, 100), (10, 4, 16)])
def test_sizes_that_the_kernel_does_not_take(shape):
    assert Codes.of(draw(shape, BINARY)) is None


def test_sequences_by_few_bits(tmp_path):
    needs_onnx()
    model, packed = Sequences().eval(), {}
    schemes = [(BINARY, "rows"), (TERNARY, "one"), (THIRDS, "rows")]
    for k, scheme in enumerate(schemes):
        weight = model.layers[k].weight
        packed[f"layers.{k}.weight"] = parameter = draw(tuple(weight.shape), *scheme, magnitude=0.1)
        weight.data = parameter.values()
    x = torch.randn(2, 5, 64)
    exported = to_onnx(model, packed, (x,), calibration=[((x,), {})])
    assert exported.floats == []
    assert operators(exported.data, tmp_path)[0]["MatMulNBits"] == 3
    assert check_same(RuntimeNetwork(exported.data), model, (x[:1],), within=0.05) > 0


@pytest.mark.slow
def test_networks_are_loaded_with_eight_bits(tmp_path):
    needs_onnx()
    model, packed = network()
    names = packed.keys()
    scales = {
        name: packed[name].scale.view(-1, *[1] * (len(packed[name].shape) - 1)).expand(packed[name].shape)
        for name in names
    }
    labels = {name: {"levels": BINARY, "scale": scales[name], "group_size": None} for name in names}
    pack_model(model, labels).write(tmp_path / "m")
    loaded = mq.load(tmp_path / "m", network()[0], activations="int8", calibration=[x for (x,), _ in images()])
    assert loaded.packed_network.name == "Sequential"
    ((x,), _) = images(1, 64)[0]
    with torch.no_grad():
        expected = model(x)
    assert (loaded(x) - expected).std() < 0.05 * expected.std()
    for wrong, message in (
        ({"activations": "int4"}, "expected 'float' or 'int8'"),
        ({"activations": "int8"}, "is for the data"),
    ):
        with pytest.raises(BadInput, match=message):
            mq.load(tmp_path / "m", network()[0], **wrong)


@pytest.mark.slow
def test_a_wrong_file_is_found():
    needs_onnx()
    model, packed = network()
    data = to_onnx(model, packed, images()[0][0]).data
    ((x,), _) = images(1, 4)[0]
    assert check_same(RuntimeNetwork(data), model, (x,)) < 1e-4
    model[0].weight.data[0] *= -1
    with pytest.raises(BadInput, match="gives outputs that differ by"):
        check_same(RuntimeNetwork(data), model, (x,))


@pytest.mark.slow
def test_benchmark(monkeypatch):
    needs_onnx()
    from mrfquant.benchmarks import packed
    from mrfquant.benchmarks.timing import Options

    small = {"lenet5": (functools.partial(LeNet5, width=0.2), (1, 28, 28))}
    for name, value in {"IMAGES": small, "BATCHES": (1, 2), "WIDTHS": (64,), "LAYERS": 1, "PAST": 4}.items():
        monkeypatch.setattr(packed, name, value)
    found = dict(packed.measure_peers(Options(seconds=0)))
    assert list(found) == ["lenet5, batch 1", "lenet5, batch 2", "gpt of width 64, a token"]
    for row in found.values():
        assert list(row) == ["PyTorch, ms", "float", "its int8", "ours", "file", "memory"]
        assert row["file"]["ratio"] < row["memory"]["ratio"] < 0.9
