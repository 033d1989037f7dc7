"""Networks that people have: labelled, trained, packed, and loaded into fresh ones that compute the same to the bit."""

import copy
import warnings

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.errors import BadInput
from mrfquant.models import GPT
from mrfquant.models import NETWORKS as KNOWN
from mrfquant.packing import layers
from mrfquant.packing.onnx_export import to_onnx
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.runtime import RuntimeNetwork, check_same


class Recurrent(nn.Module):
    """An LSTM of two layers and directions, and a linear layer on its last output."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """An embedding whose weights are the classifier's, too, and attention between them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.layer(self.embedding(x))).mean(1)


class Scaled(nn.Linear):
    """A layer of one's own."""

    def forward(self, x):
        return 2 * super().forward(x)


class Several(nn.Module):
    """Convolutions of other kinds, attention to a second input, a layer of one's own, a keyword argument."""

    def __init__(self):
        super().__init__()
        self.into = nn.Conv1d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose1d(8, 16, 2, stride=2)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = Scaled(16, 5)

    def forward(self, x, memory, gain=None):
        x = self.up(torch.relu(self.into(x))).transpose(1, 2)
        y = self.head(x + self.attention(x, memory, memory)[0])
        return y if gain is None else y * gain[:, None, None]


def vision_transformer():
    return mq.import_torchvision().models.VisionTransformer(
        image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10
    )


def images(size):
    return lambda: torch.randn(4, 3, size, size)


def tokens():
    return torch.randint(20, (4, 16))


NETWORKS = {
    "mobilenet": (lambda: mq.import_torchvision().models.mobilenet_v2(width_mult=0.25, num_classes=10), images(32)),
    "efficientnet": (lambda: mq.import_torchvision().models.efficientnet_b0(num_classes=10), images(32)),
    "vit": (vision_transformer, images(32)),
    "lstm": (Recurrent, lambda: torch.randn(4, 7, 6)),
    "tied": (Tied, tokens),
    "gpt": (lambda: GPT((16,), 20, layers=1, width=32, heads=2), tokens),
    "several": (Several, lambda: (torch.randn(4, 3, 6), torch.randn(4, 9, 16))),
}
EXPORTED = ["gpt", "lstm", "several", "tied", "vit"]
NAMED = {"gpt"}  # in mrfquant.models: a file suffices
# What has two or more dimensions and belongs to no layer that multiplies by it.
LEFT = {
    "vit": {"class_token", "encoder.pos_embedding"},
    "gpt": {"token.weight"},
    "tied": {"embedding.weight"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fresh_network_computes_the_same_to_the_bit(name, tmp_path):
    build, draw = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build(), as_tuple(draw())
    labelling = mq.Labelling(model, [-1, 1], which="weights", scale="channel")
    matrices = {n for n, p in model.named_parameters() if p.dim() > 1}
    assert matrices - labelling.labelled.spans.keys() == LEFT.get(name, set())
    settings = {"jacobian": "straight_through", "learn_scale": True, "start": "weights"}
    solver = mq.ProximalMeanField(
        labelling, lambda p: torch.optim.Adam(p, lr=0.01), mq.GeometricTo(end=1e6), **settings
    )
    solver.prepare(budget=2)
    for _ in range(2):
        model(*x).square().mean().backward()
        solver.step()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9.]+% of the weights are undecided")
        model = solver.finalize().eval()
    mq.pack_model(model, labelling).write(tmp_path / "m")
    loaded = mq.load(tmp_path / "m", None if name in NAMED else build())
    with torch.no_grad():
        expected = model(*x)
        assert torch.equal(loaded(*x), expected)
        packed = layers.pack_layers(copy.deepcopy(loaded), loaded.packed_network.parameters)
        torch.testing.assert_close(packed(*x), expected, rtol=1e-4, atol=1e-4)
    kept = [p for p in packed.parameters() if p.dim() > 1 and p.numel()]
    assert sum(p.numel() for p in kept) == sum(
        p.numel() for n, p in model.named_parameters() if n in LEFT.get(name, set())
    )


def as_tuple(inputs):
    return inputs if isinstance(inputs, tuple) else (inputs,)


def on_two_levels(model, scale=0.1):
    """Give the matrices of a network random values on two levels; their packed form."""
    packed = {}
    for name, p in model.named_parameters():
        if p.dim() > 1 and "norm" not in name and "token" not in name:
            p.data = torch.where(torch.rand(p.shape) < 0.5, -1.0, 1.0) * torch.tensor(scale)
            packed[name] = PackedParameter.of(p, (-1.0, 1.0), scale=torch.tensor([scale]))
    return packed


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_onnx_runtime_computes_the_same(name):
    for module in ("onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    build, draw = NETWORKS[name]
    torch.manual_seed(0)
    model, x, y = build().eval(), as_tuple(draw()), as_tuple(draw())
    packed = on_two_levels(model)
    keywords = {"gain": torch.randn(4)} if name == "several" else {}
    exported = to_onnx(copy.deepcopy(model).bfloat16() if name == "gpt" else model, packed, x, keywords)
    network = RuntimeNetwork(exported.data)
    check_same(network, model, y, keywords, within=1e-2 if name == "gpt" else 1e-4)
    three = tuple(t[:3] for t in y)
    check_same(network, model, three, {k: v[:3] for k, v in keywords.items()}, within=1e-2)
    whole = sum(4 * p.numel() for p in model.parameters())
    packed_bytes = sum(4 * p.numel() - packed[n].nbytes for n, p in model.named_parameters() if n in packed)
    assert len(exported.data) < whole - packed_bytes + 700 * len(packed) + 20_000


def test_an_onnx_file_that_is_none_is_told_in_a_sentence():
    pytest.importorskip("onnxruntime")
    with pytest.raises(BadInput, match="ONNX Runtime cannot read this ONNX file") as error:
        RuntimeNetwork(b"no protobuf" * 10)
    assert "\n" not in str(error.value)


class Rotary(nn.Module):
    """A network with a buffer that no state dict has."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("frequencies", torch.arange(1.0, 7.0), persistent=False)

    def forward(self, x):
        return self.linear(x * self.frequencies)


def rounded(model, shape=(40, 6)):
    return mq.round_network(model, [torch.randn(shape)], solver="nearest", progress=False)


def test_buffers_that_no_file_has_are_not_left_without_values(tmp_path, monkeypatch):
    path = tmp_path / "rotary.safetensors"
    model = Rotary()
    rounded(model).save(path)
    with torch.device("meta"):
        empty = Rotary()
    with pytest.raises(mq.BadInput, match=r"the buffer frequencies is on the meta device .* on the CPU"):
        mq.load(path, empty)
    monkeypatch.setitem(KNOWN, "Rotary", Rotary)  # what is built here has them
    x = torch.randn(3, 6)
    assert torch.equal(mq.load(path)(x), model(x))


def test_a_class_of_the_same_name_as_one_of_ours_is_told_apart(tmp_path):
    path = tmp_path / "lenet.safetensors"
    other = type("LeNet300", (Rotary,), {})()
    rounded(other).save(path)
    with pytest.raises(mq.BadInput, match=r"\.LeNet300'.* give it as load\(path, model\)"):
        mq.load(path)
    assert torch.equal(mq.load(path, copy.deepcopy(other)).linear.weight, other.linear.weight)


def test_a_network_whose_layers_were_wrapped_after_rounding_is_not_packed(tmp_path):
    result = rounded(Rotary())
    result.model.linear = nn.ModuleDict({"base_layer": result.model.linear})  # as adapters do
    with pytest.raises(mq.BadInput, match=r"linear\.weight is not in the network any more: pack or save before"):
        result.save(tmp_path / "wrapped.safetensors")


def test_packed_layers_are_not_saved_as_if_they_were_float():
    model = Rotary()
    model.save_pretrained = lambda folder: None  # as networks of transformers have
    packed = layers.pack_layers(model, rounded(model).pack().parameters)
    with pytest.raises(mq.BadInput, match="packed layers have no float weights to save"):
        packed.save_pretrained("folder")


def test_adapters_of_peft_train_on_a_rounded_network_and_are_refused_on_packed_layers(tmp_path):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["linear"])
    result = rounded(Rotary())
    packed = layers.pack_layers(rounded(Rotary()).model, result.pack().parameters)
    with pytest.raises(ValueError, match=r"PackedLinear[\s\S]* is not supported"):  # PEFT's own
        peft.get_peft_model(packed, settings)
    adapted = peft.get_peft_model(result.model, settings)
    assert {name.rsplit(".", 3)[1] for name, p in adapted.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    with pytest.raises(mq.BadInput, match=r"linear\.weight is not in the network any more: pack or save before"):
        result.save(tmp_path / "wrapped.safetensors")
