"""Words of few-bit labels, against MLX itself and by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from mrfquant.language.affine import AffineLinear, pack_words, unpack_words


@pytest.fixture
def drawn(request):
    bits, generator = request.param, torch.Generator().manual_seed(0)
    layer = AffineLinear(128, 3, True, bits, 64)
    labels = torch.randint(2**bits, (3, 128), generator=generator).to(torch.uint8)
    layer.weight = pack_words(labels, bits)
    for name in ("scales", "biases", "bias"):
        getattr(layer, name).normal_(generator=generator)
    return layer, labels


def test_the_lowest_bits_of_a_word_are_the_first_label():
    labels = torch.zeros(1, 32, dtype=torch.uint8)
    labels[0, :3] = torch.tensor([3, 0, 1])
    labels[0, 16] = 2
    assert pack_words(labels, 2).tolist() == [[3 | 1 << 4, 2]]
    labels[0, 10:12] = torch.tensor([1, 5])  # the eleventh begins with bit 30 of the first word
    assert pack_words(labels, 3).tolist()[0][:2] == [3 | 1 << 6 | 1 << 30, 5 << 1 | 2 << 16]


@pytest.mark.parametrize("drawn", [2, 3, 4], indirect=True)
def test_labels_are_read_back_and_weights_are_scale_times_label_plus_bias(drawn):
    layer, labels = drawn
    assert torch.equal(unpack_words(layer.weight, layer.bits), labels.int())
    grouped = labels.view(3, 2, 64) * layer.scales[..., None] + layer.biases[..., None]
    x = torch.randn(2, 5, 128, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(layer(x), functional.linear(x, grouped.flatten(1), layer.bias), atol=1e-5)


@pytest.mark.parametrize("drawn", [2, 3, 4], indirect=True)
def test_mlx_reads_the_same_weights(drawn):
    mx = pytest.importorskip("mlx.core", reason="pip install 'mlx[cpu]'")
    layer, _ = drawn
    parts = [mx.array(getattr(layer, name).numpy()) for name in ("weight", "scales", "biases")]
    found = np.array(mx.dequantize(*parts, group_size=64, bits=layer.bits))
    assert np.allclose(found, layer.values().numpy(), rtol=1e-6, atol=1e-7)
