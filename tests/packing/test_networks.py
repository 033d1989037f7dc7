"""Networks that people have: labelled, trained, packed, and loaded into fresh ones that compute the same to the bit."""

import copy
import warnings

import pytest
import torch
from torch import nn

import mrfquant as mq
from mrfquant.models import GPT
from mrfquant.packing import layers


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
}
NAMED = {"gpt"}  # in mrfquant.models: a file suffices
# What has two or more dimensions and belongs to no layer that multiplies by it.
LEFT = {"vit": {"class_token", "encoder.pos_embedding"}, "gpt": {"token.weight"}}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fresh_network_computes_the_same_to_the_bit(name, tmp_path):
    build, draw = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build(), draw()
    labelling = mq.Labelling(model, [-1, 1], which="weights", scale="channel", learn_scale=True, start="weights")
    matrices = {n for n, p in model.named_parameters() if p.dim() > 1}
    assert matrices - labelling.labelled.spans.keys() == LEFT.get(name, set())
    solver = mq.ProximalMeanField(
        labelling, lambda p: torch.optim.Adam(p, lr=0.01), mq.GeometricTo(end=1e6), jacobian="straight_through"
    )
    solver.prepare(budget=2)
    for _ in range(2):
        model(x).square().mean().backward()
        solver.step()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9.]+% of the weights are undecided")
        model = solver.finalize().eval()
    mq.pack_model(model, labelling).write(tmp_path / "m")
    loaded = mq.load(tmp_path / "m", None if name in NAMED else build())
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(loaded(x), expected)
        packed = layers.pack_layers(copy.deepcopy(loaded), loaded.packed_network.parameters)
        torch.testing.assert_close(packed(x), expected, rtol=1e-4, atol=1e-4)
