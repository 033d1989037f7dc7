"""The packed file: whole, small, checked, and never trusted."""

import json
import random
import struct

import gin
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import mrfquant
from mrfquant.commands.eval import label_shares, layer_table
from mrfquant.errors import BadInput
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.models import LeNet5, LeNet300, ResNet
from mrfquant.packing import PackedNetwork, PackedParameter, pack_model
from mrfquant.packing.bits import deflated, inflated
from mrfquant.packing.file import _checksum

INPUT_INFO = {"mean": [0.1], "std": [0.3], "classes": list("0123456789")}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def packed(model, levels=(-1, 1), scale="none", encoding="bits", exclude=(), learn_scale=False):
    """A network rounded by a solver, packed; and its state as it computes."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    labelling = Labelling(model, levels, exclude, scale, group_size=10)
    solver = ProximalMeanField(labelling, sgd, learn_scale=learn_scale)
    if learn_scale:
        sum(p.sin().sum() for p in model.parameters()).backward()
        solver.step()
    with solver.rounded():
        network = pack_model(model, labelling, encoding=encoding)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    network.input_info = INPUT_INFO
    return network, state


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    packed(LeNet5((1, 28, 28), 10, width=0.2))[0].write(path)
    return path


@pytest.mark.parametrize(("levels", "encoding"), [((-1, 1), "bits"), ((-1, 0, 1), "base3"), ((-2, -1, 1, 2), "bits")])
def test_a_compressed_file_holds_the_same_labels(levels, encoding, tmp_path):
    torch.manual_seed(1)
    network, _ = packed(LeNet5((1, 28, 28), 10, width=0.2), levels, "channel", encoding)
    size, smaller = network.write(tmp_path / "a"), network.write(tmp_path / "b", compress=True)
    assert smaller < size + 1000  # random labels do not compress
    one, two = (PackedNetwork.read(tmp_path / name) for name in "ab")
    assert one.parameters.keys() == two.parameters.keys()
    for name, p in one.parameters.items():
        other = two.parameters[name]
        assert torch.equal(p.data, other.data)
        assert (p.shape, p.levels, p.encoding) == (other.shape, other.levels, other.encoding)


def test_rare_labels_compress_towards_their_entropy(tmp_path):
    labels = (torch.rand(200_000, generator=torch.Generator().manual_seed(0)) < 0.02).float()
    parameter = PackedParameter.of(labels, (0.0, 1.0))
    entropy = 200_000 * 0.1414 / 8  # bytes
    assert entropy < len(parameter.stored(compressed=True)) < 1.7 * entropy < len(parameter.data) / 4


@pytest.mark.parametrize("cut", [slice(0, -4), slice(3, None), slice(0, 0)])
def test_damaged_streams_and_streams_of_another_length_are_refused(cut):
    data = torch.arange(200, dtype=torch.uint8)
    stream = deflated(data)
    assert torch.equal(inflated(stream, 200), data)
    with pytest.raises(BadInput, match="damaged"):
        inflated(stream[cut], 200)
    for size in (199, 201):
        with pytest.raises(BadInput, match=f"not the {size} bytes"):
            inflated(stream, size)


@pytest.mark.parametrize("scale", ["none", 0.25, "layer", "channel", "group"])
@pytest.mark.parametrize(("levels", "encoding"), [((-1, 1), "bits"), ((-1, 0, 1), "base3"), ((-2, -1, 1, 2), "bits")])
def test_the_loaded_network_computes_the_same_to_the_bit(levels, encoding, scale, tmp_path):
    torch.manual_seed(1)
    model = ResNet((3, 32, 32), 10, width=0.1)
    exclude = ["classifier.bias"]
    network, state = packed(model, levels, scale, encoding, exclude, learn_scale=scale != "none")
    network.write(tmp_path / "m")
    loaded = mrfquant.load(tmp_path / "m")
    assert not loaded.training
    model.load_state_dict(state)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(images), model.eval()(images))
    assert loaded.packed_network.input_info == INPUT_INFO
    assert "classifier.bias" in loaded.packed_network.floats


@pytest.mark.parametrize(
    ("model", "levels", "encoding", "share"),
    [
        (LeNet5((1, 28, 28), 10), (-1, 1), "bits", 31),
        (LeNet5((1, 28, 28), 10), (-2, -1, 1, 2), "bits", 15),
        (LeNet5((1, 28, 28), 10), (-1, 0, 1), "base3", 19),
        (ResNet((3, 32, 32), 10), (-1, 1), "bits", 31),
    ],
)
def test_the_file_is_as_small_as_promised(model, levels, encoding, share, tmp_path):
    """Total bytes, batch-norm statistics apart, against the parameters as float32."""
    network, _ = packed(model, levels, encoding=encoding)
    network.origin = {"method": "PMF", "dataset": "mnist", "seed": 0, "run": "pmf_lenet5_mnist-seed0", "top1": 99.4321}
    size = network.write(tmp_path / "m")
    assert size == (tmp_path / "m").stat().st_size
    statistics = sum(tensor.nbytes for tensor in network.floats.values())
    assert size - statistics <= 4 * sum(p.numel() for p in model.parameters()) / share


def test_a_network_of_your_own(tmp_path):
    def build():
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))

    network, state = packed(build())
    network.write(tmp_path / "m")
    with pytest.raises(
        BadInput,
        match=r"holds a network 'Sequential', known are .*--import MODULE.* give it as load",
    ):
        mrfquant.load(tmp_path / "m")
    loaded = mrfquant.load(tmp_path / "m", build())
    assert all(torch.equal(t, state[name]) for name, t in loaded.state_dict().items())
    with pytest.raises(BadInput, match=r"does not fit Sequential: 0.weight is 7x5 in the file and 8x5 in the network"):
        mrfquant.load(tmp_path / "m", torch.nn.Sequential(torch.nn.Linear(5, 8)))


def test_weights_off_their_levels_are_refused():
    model = LeNet300((1, 28, 28), 10, width=0.1)
    labelling = Labelling(model, [-1, 1])
    with pytest.raises(BadInput, match=r"layers.1.weight: \d+ of \d+ weights are not on the levels .* can be packed"):
        pack_model(model, labelling)


def rewritten(file, **changes):
    """The file with other metadata and a checksum that is right: what someone hostile would write."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    network = PackedNetwork.read(file)
    tensors = {name: p.data for name, p in network.parameters.items()} | network.floats
    metadata |= changes
    metadata["sha256"] = _checksum({k: v for k, v in metadata.items() if k != "sha256"}, tensors)
    file.write_bytes(save(tensors, metadata))


def blocks(levels=(-1, 1), encoding="bits", more=(), **shapes):
    return json.dumps([[list(levels), encoding, {name.replace("__", "."): s for name, s in shapes.items()}, *more]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other 1"}, "of another kind"),
        ({"format": "mrfquant 7"}, "has version '7' of the format, this program reads '1'"),
        ({"network": '["os.system", {}]'}, "holds a network 'os.system', known are"),
        ({"network": '["LeNet5", {"shape": [1, 28, 28], "classes": 10, "width": 1e9}]'}, "LeNet5"),
        ({"network": '["LeNet5", {"shape": [1, 28, 28], "classes": 10, "width": 1e300}]'}, "LeNet5"),
        ({"network": '["LeNet5", {"shape": "../../etc", "classes": 10}]'}, "cannot be built from the arguments"),
        ({"network": '["LeNet5", {"classes": 10}]'}, "cannot be built from the arguments"),
        (
            {"network": '["GPT", {"shape": [8], "classes": 4, "layers": 100000000}]'},
            "cannot be built from the arguments",
        ),
        ({"network": "[]"}, "its metadata is not what version 1 has"),
        ({"network": "{" * 5000}, "its metadata is not what version 1 has"),
        ({"blocks": "[[[]]]"}, "its metadata is not what version 1 has"),
        ({"blocks": blocks(layers__0__weight=[10**13, 1])}, "has the invalid shape"),
        ({"blocks": blocks(layers__0__weight=[10**6, 10**6])}, "take 125000000000 bytes, not"),
        ({"blocks": blocks(layers__0__weight=[-1])}, "has the invalid shape"),
        ({"blocks": blocks(layers__0__weight=[2**39] * 1000)}, "has the invalid shape"),
        ({"blocks": blocks(layers__0__weight=[2**39, 2**39, 0])}, "has the invalid shape"),
        ({"blocks": blocks(nothing=[4])}, "nothing is in the metadata, but not in the file"),
        ({"blocks": blocks((1, -1), layers__0__bias=[4])}, "not finite, different and increasing"),
        ({"blocks": blocks((0, float("inf")), layers__0__bias=[4])}, "not finite, different and increasing"),
        ({"blocks": blocks(encoding="exec", layers__0__bias=[4])}, "has the encoding 'exec'"),
        ({"blocks": blocks(encoding="base3", layers__0__bias=[4])}, "or 'base3' for three levels"),
        ({"blocks": blocks(layers__0__bias=[4])}, "is torch.uint8, expected float32 or int64"),
        ({"blocks": blocks(more=[0], layers__0__bias=[4])}, "has the invalid group size"),
        ({"blocks": blocks(more=[True], layers__0__bias=[4])}, "has the invalid group size"),
        ({"blocks": blocks(more=["4"], layers__0__bias=[4])}, "has the invalid group size"),
        ({"blocks": blocks(more=[4, 4], layers__0__bias=[4])}, "has the invalid group size"),
        ({"blocks": blocks(more=[2], layers__0__bias=[4])}, "has a group size and no scale"),
        ({"tied": "[]"}, "its metadata is not what version 1 has"),
        ({"tied": '{"a": ["layers.1.weight"]}'}, "its metadata is not what version 1 has"),
        ({"tied": '{"a": "nothing"}'}, "a is said to be the same as nothing, which cannot be"),
        ({"tied": '{"layers.1.weight": "layers.1.weight"}'}, "which cannot be"),
        ({"input_info": '{"mean": [0], "std": [0]}'}, "its metadata is not what version 1 has"),
    ],
)
def test_hostile_metadata_is_refused_in_one_sentence(changes, message, file):
    rewritten(file, **changes)
    with pytest.raises(BadInput) as error:
        mrfquant.load(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("group_size", [3, 6, 2**39, None])
def test_runs_that_do_not_fit_the_scale_are_refused(group_size):
    data = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(BadInput, match=r"a scale of shape \(4, 3\) for a parameter of shape \(4, 6\)"):
        PackedParameter(data, (4, 6), (-1.0, 1.0), "bits", torch.ones(4, 3), group_size)
    PackedParameter(data, (4, 6), (-1.0, 1.0), "bits", torch.ones(4, 3), 2)


def test_zero_points_that_do_not_fit_the_scale_are_refused():
    data = torch.zeros(3, dtype=torch.uint8)
    for scale in (None, torch.ones(4)):
        with pytest.raises(BadInput, match=r"zero points of shape \(1,\), expected that of the scale"):
            PackedParameter(data, (4, 6), (-1.0, 1.0), "bits", scale, zero=torch.ones(1))


def test_scales_of_runs_are_stored_once_each(tmp_path):
    """Rows of 25 weights in runs of 10: three numbers a row beside the labels; rows that fit in a run have one."""
    model = torch.nn.Sequential(torch.nn.Linear(25, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))
    network, _ = packed(model, scale="group")
    network.write(tmp_path / "m")
    found = PackedNetwork.read(tmp_path / "m").parameters
    assert found["0.weight"].scale.shape == (7, 3)
    assert found["0.weight"].group_size == 10
    assert found["0.weight"].nbytes == 22 + 4 * 21
    assert found["2.weight"].scale.shape == (2,)
    assert found["2.weight"].group_size is None


def test_damage_is_told(file, tmp_path):
    good = file.read_bytes()
    for cut in (0, 4, 8, 100, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:cut])
        with pytest.raises(BadInput, match="not a whole safetensors file"):
            mrfquant.load(file)
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(BadInput, match="altered or damaged"):
        mrfquant.load(file)
    file.write_bytes(b"PK\x03\x04 not a safetensors file")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        mrfquant.load(file)
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "none", "is not there")):
        with pytest.raises(BadInput, match=message):
            mrfquant.load(path)


def test_mutated_files_are_refused_or_right(file):
    """Random bytes, cuts and insertions: a clean refusal every time, since the checksum covers everything."""
    good, rng, messages = file.read_bytes(), random.Random(0), []
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            where = rng.randrange(len(data)) if rng.random() < 0.3 else rng.randrange(min(len(data), 2200))
            kind = rng.random()
            if kind < 0.5:
                data[where] = rng.randrange(256)
            elif kind < 0.75:
                del data[where : where + rng.randint(1, 20)]
            else:
                data[where:where] = rng.randbytes(rng.randint(1, 20))
        if bytes(data) == good:
            continue
        file.write_bytes(data)
        with pytest.raises(BadInput) as error:
            mrfquant.load(file)
        messages.append(str(error.value))
    assert len(messages) > 290
    assert not any("\n" in message for message in messages)


def test_the_same_network_gives_the_same_bytes(tmp_path):
    """safetensors writes metadata in an order that differs from call to call."""
    network, _ = packed(LeNet5((1, 28, 28), 10, width=0.2), (-1, 0, 1))
    sizes = {network.write(tmp_path / str(i)) for i in range(8)}
    assert len({(tmp_path / str(i)).read_bytes() for i in range(8)}) == 1
    assert sizes == {(tmp_path / "0").stat().st_size}
    assert mrfquant.load(tmp_path / "0").packed_network.parameters.keys() == network.parameters.keys()


def test_compressed_labels_do_not_expand_without_bounds(tmp_path):
    """Neither those of one parameter nor those of many together; what would not be read is not written."""
    data = deflated(torch.zeros(2**20, dtype=torch.uint8))
    assert len(inflated(data, 2**20)) == 2**20
    with pytest.raises(BadInput, match="would take 1,000,000,000 bytes, 67,108,864 at most are read"):
        inflated(data, 10**9)
    labels = PackedParameter(torch.zeros(2**23, dtype=torch.uint8), (2**26,), (-1.0, 1.0))
    network = PackedNetwork("Own", {}, INPUT_INFO, {str(i): labels for i in range(3)}, {})
    assert network.write(tmp_path / "m", compress=True) < 2**17  # tied: they are one
    network.parameters = {str(i): PackedParameter(labels.data, labels.shape, labels.levels) for i in range(12)}
    with pytest.raises(BadInput, match="would not be read again"):
        network.write(tmp_path / "n", compress=True)
    assert not (tmp_path / "n").exists()


def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch):
    network, _ = packed(LeNet300((1, 28, 28), 10, width=0.05))
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        network.write(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_gin_has_no_say_in_what_is_loaded(file, tmp_path):
    gin.clear_config()
    gin.parse_config(["LeNet5.width = 0.5"])
    try:
        assert mrfquant.load(file).packed_network.arguments["width"] == 0.2
        default = LeNet300((1, 28, 28), 10)
        packed(default)[0].write(tmp_path / "default")
        gin.parse_config(["LeNet300.width = 0.5"])
        assert mrfquant.load(tmp_path / "default").state_dict()["layers.1.weight"].shape == (300, 784)
    finally:
        gin.clear_config()


def inspected(network):
    return layer_table(network, {name: label_shares(p) for name, p in network.parameters.items()})[1:]


def test_other_types_and_shared_weights(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.b.weight, self.b.bias = self.a.weight, self.a.bias

    network, state = packed(Tied().bfloat16(), scale=0.5, exclude=["*.bias"])
    assert {"a.weight", "b.weight"} == set(network.parameters)
    size = network.write(tmp_path / "m")
    loaded = mrfquant.load(tmp_path / "m", Tied())
    assert all(torch.equal(t, state[name].float()) for name, t in loaded.state_dict().items())
    with safe_open(tmp_path / "m", framework="pt") as file:
        assert set(file.keys()) == {"a.weight", "a.weight:scale", "a.bias"}  # each once
        assert json.loads(file.metadata()["tied"]) == {"b.weight": "a.weight", "b.bias": "a.bias"}
    again = loaded.packed_network
    assert set(again.parameters) | set(again.floats) == set(state)
    assert again.write(tmp_path / "again") == size
    assert sum(int(row[-1].replace(",", "")) for row in inspected(again) if row[-1]) < size
    assert [row[:2] for row in inspected(again) if not row[-1]] == [
        ["b.weight", "is a.weight"],
        ["b.bias", "is a.bias"],
    ]
    with pytest.raises(BadInput, match=r"is torch.float64: files hold float32 and int64, convert the network first"):
        packed(Tied().double())
