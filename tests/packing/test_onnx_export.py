"""ONNX files of packed networks compute what the network computes, and are as small as the packed weights."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from mrfquant.errors import BadInput
from mrfquant.models import VGG, LeNet5, LeNet300, ResNet
from mrfquant.packing import onnx_export
from mrfquant.packing.bits import pack
from mrfquant.packing.onnx_export import to_onnx
from mrfquant.packing.parameter import PackedParameter

BINARY, TERNARY, FOUR = (-1.0, 1.0), (-1.0, 0.0, 1.0), (-1.0, -0.3, 0.1, 1.0)
RUN = 4  # weights
SCHEMES = [(q, "bits", s) for q in (BINARY, TERNARY, FOUR) for s in (None, "one", "channels", "runs")]
SCHEMES += [(TERNARY, "base3", s) for s in (None, "one", "channels", "runs")]
SCHEMES += [(FOUR, "bits", s) for s in ("channels and zeros", "runs and zeros")]
# A single level, labels that cross bytes (3, 5 and 9 bits) and those that fill one.
SCHEMES += [(tuple(np.linspace(-2, 3, d).tolist()), "bits", None) for d in (1, 5, 16, 17, 256, 300)]


def export_onnx(model, packed, inputs, path, **options):
    path.write_bytes(to_onnx(model, packed, inputs, **options).data)


def random_parameter(shape, scheme):
    """Random labels, and scales if the scheme has them."""
    levels, encoding, scales = scheme
    labels = torch.randint(len(levels), shape)
    data, columns = pack(labels, len(levels), encoding), labels[0].numel()
    scales, _, zeros = str(scales).partition(" and ")
    scales = "channels" if scales == "runs" and columns <= RUN else scales
    sizes = {"None": 0, "one": 1, "channels": shape[0], "runs": (shape[0], -(-columns // RUN))}[scales]
    scale, zero = 0.1 + torch.rand(sizes) if sizes else None, torch.randn(sizes) if zeros else None
    group_size = RUN if scales == "runs" else None
    return PackedParameter(data, tuple(shape), levels, encoding, scale, group_size, zero)


def quantize(model, *schemes):
    """Give the parameters random values on levels, the schemes in turn."""
    packed = {}
    for i, (name, parameter) in enumerate(model.named_parameters()):
        packed[name] = random_parameter(parameter.shape, schemes[i % len(schemes)])
        parameter.data = packed[name].values()
    return packed


def calibrate(model, shape):
    """Let batch norm keep the statistics of noise, so that the logits depend on the images."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(16, *shape))


def run(path, images):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["images"]
    assert [o.name for o in session.get_outputs()] == ["logits"]
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def bound(model, packed):
    """Bytes of the weights, of the statistics of batch norm with its constants, and of the nodes of the graph."""
    statistics = sum(2 * 4 * buffer.numel() for buffer in model.buffers())
    return sum(p.nbytes for p in packed.values()) + statistics + 700 * len(packed) + 1000


NETWORKS = {
    "lenet300": (lambda shape: LeNet300(shape, 10), (1, 28, 28), [(BINARY, "bits", None)]),
    "lenet5": (lambda shape: LeNet5(shape, 10), (1, 28, 28), [(TERNARY, "base3", "channels")]),
    "vgg": (lambda shape: VGG(shape, 10, depth=11, width=0.1), (3, 32, 32), [(FOUR, "bits", "one")]),
    "resnet": (lambda shape: ResNet(shape, 10, width=0.1), (3, 32, 32), SCHEMES[:16]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_computes_what_the_network_does_and_is_small(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    build, shape, schemes = NETWORKS[name]
    model = build(shape)
    packed = quantize(model, *schemes)
    calibrate(model, shape)
    unpacked, _ = packed.popitem()  # the last bias stays
    path = tmp_path / "network.onnx"
    export_onnx(model, packed, (torch.zeros(2, *shape),), path, names=["images"])

    assert model.training, "the network is left as it is"
    model.eval()
    images = torch.randn(3, *shape)
    with torch.no_grad():
        expected = model(images)
    assert expected.std(0).mean() > 0.1, "the logits depend on the images"
    for batch in (1, 3):
        torch.testing.assert_close(run(path, images[:batch]), expected[:batch], atol=1e-4, rtol=1e-4)

    stored = onnx.load(path)
    onnx.checker.check_model(stored, full_check=True)
    floats = {tensor.name for tensor in stored.graph.initializer} & {name for name, _ in model.named_parameters()}
    assert floats == {unpacked}, "no weights beside the packed ones"
    assert path.stat().st_size < bound(model, packed)
    assert b".py" not in path.read_bytes(), "no stack traces"
    assert [file.name for file in tmp_path.iterdir()] == ["network.onnx"]


class Rows(nn.Module):
    """A linear layer for every scheme: the identity as the input shows the weights themselves."""

    def __init__(self, inputs, outputs, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(layers))

    def forward(self, x):
        return torch.cat([layer(x) for layer in self.layers], 1)


def test_every_encoding_gives_the_weights_to_the_bit(tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = Rows(7, 11, len(SCHEMES))
    packed = quantize(model, *SCHEMES)
    export_onnx(model, packed, (torch.zeros(2, 7),), tmp_path / "rows.onnx", names=["images"])
    expected = torch.cat([parameter.values() for parameter in packed.values()])
    assert torch.equal(run(tmp_path / "rows.onnx", torch.eye(7)).T, expected)


def test_weights_under_two_names_are_packed_once(tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = Rows(7, 11, 2)
    (parameter,) = quantize(model.layers[0], SCHEMES[0]).values()
    model.layers[1].weight = model.layers[0].weight
    packed = {f"layers.{k}.weight": parameter for k in (0, 1)}
    export_onnx(model, packed, (torch.zeros(2, 7),), tmp_path / "tied.onnx", names=["images"])
    assert torch.equal(run(tmp_path / "tied.onnx", torch.eye(7)).T, torch.cat([parameter.values()] * 2))


@pytest.mark.parametrize(
    ("name", "message"), [("wieght", "no parameter wieght"), ("weight", "weight differs from the packed one")]
)
def test_packed_parameters_must_be_those_of_the_network(name, message):
    ir = pytest.importorskip("onnx_ir")
    weight = ir.Value(name="weight", const_value=ir.tensor(np.zeros((4, 6), np.float32)))
    graph = ir.Graph([], [], nodes=[], initializers=[weight])
    with pytest.raises(BadInput, match=message):
        onnx_export._pack(graph, {name: random_parameter((4, 6), SCHEMES[0])})


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=r"pip install 'mrfquant\[onnx\]'"):
        export_onnx(nn.Linear(6, 4), {}, (torch.zeros(2, 6),), tmp_path / "linear.onnx")


def test_torch_export_takes_an_unpacked_network():
    torch.manual_seed(0)
    shape = (1, 28, 28)
    source, model = LeNet5(shape, 10, width=0.2), LeNet5(shape, 10, width=0.2)
    packed = quantize(source, *SCHEMES[:16])
    calibrate(source, shape)
    model.load_state_dict(source.state_dict() | {name: parameter.values() for name, parameter in packed.items()})
    images = torch.randn(2, *shape)
    exported = torch.export.export(model.eval(), (images,)).module()
    assert torch.equal(exported(images), source.eval()(images))
