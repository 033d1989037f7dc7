"""Calls of layers as rows times columns, against what the layers compute."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mrfquant.rounding.watch import Watch

IMAGES = {1: (3, 4, 9), 2: (3, 4, 7, 6), 3: (2, 4, 5, 4, 6)}
LAYERS = {
    "linear": (nn.Linear(6, 5), (3, 2, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1, groups=2), IMAGES[1]),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1)), IMAGES[2]),
    "dilation": (nn.Conv2d(4, 6, 2, dilation=(2, 1), groups=2), IMAGES[2]),
    "same": (nn.Conv2d(4, 6, (2, 3), padding="same"), IMAGES[2]),
    "valid": (nn.Conv2d(4, 6, 3, padding="valid"), IMAGES[2]),
    "reflect": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGES[2]),
    "without a batch": (nn.Conv2d(4, 6, 3), IMAGES[2][1:]),
    "conv3d": (nn.Conv3d(4, 2, 2), IMAGES[3]),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), IMAGES[1]),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), dilation=(1, 2), bias=False), IMAGES[2]),
    "transposed, cut": (nn.ConvTranspose2d(4, 3, 1, padding=1), IMAGES[2]),
}


def uses_of(layer, x):
    """What a watch sees of the layer's weight."""
    with torch.no_grad(), Watch({"weight": layer.weight}, wanted=["weight"]) as watch:
        layer(x)
    return watch.uses


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_rows_times_columns_are_the_outputs(name):
    layer, shape = LAYERS[name]
    (use,) = uses_of(layer.double(), torch.randn(shape, dtype=torch.float64))
    product = use.product
    positions = product.positions(1, torch.Generator().manual_seed(0))
    columns, w = product.columns(positions), product.form.matrix(layer.weight)
    w = w.view(len(columns), -1, w.shape[1])
    found = torch.einsum("gpn,grn->pgr", columns, w).flatten(1)
    if layer.bias is not None:
        found = found + layer.bias
    torch.testing.assert_close(found, product.at(product.output, positions))
    assert len(found) == product.output.numel() // product.rows  # few inputs: every pixel is looked at


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_a_matrix_goes_back_into_the_weights_shape(name):
    layer, shape = LAYERS[name]
    (use,) = uses_of(layer.double(), torch.randn(shape, dtype=torch.float64))
    form, weight = use.product.form, layer.weight.detach()
    matrix = form.matrix(weight)
    scale = torch.rand(len(matrix), 1, dtype=torch.float64)
    assert torch.equal(form.tensor(matrix, weight.shape), weight)
    for scales in (scale, torch.rand_like(matrix)):
        scaled = form.tensor(matrix * scales, weight.shape)
        assert torch.equal(scaled, weight * form.spread(scales, weight.shape))


def test_large_images_are_looked_at_in_some_pixels():
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(4, 2, 80, 80)
    (use,) = uses_of(layer, x)
    drawn = use.product.positions(1, torch.Generator().manual_seed(0))
    assert len(drawn) == -(-78 * 78 * 3 // 18)  # as many products as the forward takes
    drawn = use.product.positions(1, torch.Generator().manual_seed(0))
    again = use.product.positions(1, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_layers_called_by_keywords_and_by_function_are_seen():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    with torch.no_grad(), Watch({"w": layer.weight}, wanted=["w"]) as watch:
        layer(input=x)
        functional.linear(bias=None, weight=layer.weight, input=x)
        functional.linear(x, layer.weight[1:3])
    assert [(use.product.first, use.product.rows) for use in watch.uses] == [(0, 3), (0, 3), (1, 2)]


@pytest.mark.parametrize("own", [True, False])
def test_the_projections_of_attention_are_seen(own):
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 5, 8)
    with torch.no_grad(), Watch({"w": attention.in_proj_weight}, wanted=["w"]) as watch:
        attention(x, x if own else x + 1, x if own else x + 2)
    spans = [(use.product.first, use.product.rows) for use in watch.uses]
    assert spans == ([(0, 24)] if own else [(0, 8), (8, 8), (16, 8)])
