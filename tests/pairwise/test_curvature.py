"""Curvature factors against the exact generalised Gauss-Newton matrix and unfolded inputs."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional

from mrfquant.pairwise.curvature import curved_layers, damped, output_curvature, second_moments

CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "stride": {"kernel_size": 3, "stride": (2, 1)},
    "padding": {"kernel_size": (3, 2), "padding": (2, 1)},
    "dilation": {"kernel_size": 2, "dilation": (2, 1), "padding": 1},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1},
    "same": {"kernel_size": (2, 3), "padding": "same"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


@pytest.mark.parametrize("arguments", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_second_moments_give_the_mean_square_of_a_convolutions_outputs(arguments):
    layer = nn.Conv2d(4, 6, bias=False, dtype=torch.float64, **arguments)
    x = torch.randn(5, 4, 7, 6, dtype=torch.float64)
    a = second_moments(layer, x)
    w = layer.weight.reshape(len(a), 6 // len(a), -1)
    found = torch.einsum("gri,gij,grj->gr", w, a, w).flatten()
    torch.testing.assert_close(found, layer(x).square().sum((2, 3)).mean(0), rtol=1e-10, atol=1e-10)


def test_second_moments_of_a_linear_layer():
    layer = nn.Linear(600, 3, dtype=torch.float64)  # large enough for half products
    x = torch.randn(9, 600, dtype=torch.float64)
    torch.testing.assert_close(second_moments(layer, x)[0], x.T @ x / 9)


def test_a_sample_of_pixels_has_the_right_mean():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3)
    x = torch.randn(64, 3, 12, 12) + 1
    mean = torch.stack([second_moments(layer, x, sample_pixels=True) for _ in range(200)]).mean(0)
    torch.testing.assert_close(mean, second_moments(layer, x), rtol=0.05, atol=2)


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def _ggn(model: nn.Module, x: torch.Tensor, name: str) -> torch.Tensor:
    """The exact generalised Gauss-Newton matrix of the mean cross-entropy for one parameter."""
    parameters = dict(model.named_parameters())
    total = 0
    for image in x:
        jacobian = jacrev(lambda p, image=image: functional_call(model, {**parameters, name: p}, image[None])[0])(
            parameters[name]
        ).flatten(1)
        p = model(image[None])[0].softmax(0)
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    return total.detach() / len(x)


def _factors(model: nn.Module, x: torch.Tensor, samples: int | None = None):
    layers, inputs, outputs = curved_layers(model), {}, {}
    for name, layer in layers.items():
        layer.register_forward_hook(
            lambda _, given, output, name=name: (
                (inputs.update({name: given[0]}), outputs.update({name: output}))[2:] or None
            )
        )
    logits = model(x)
    g = output_curvature(list(layers.values()), list(outputs.values()), logits, samples)
    return {
        name: (second_moments(layer, inputs[name].detach())[0], gr)
        for (name, layer), gr in zip(layers.items(), g, strict=True)
    }


def test_for_one_image_the_rows_of_the_exact_curvature_are_the_products():
    torch.manual_seed(0)
    model, x = _network(), torch.randn(1, 4, dtype=torch.float64)
    for name, (a, g) in _factors(model, x).items():
        exact = _ggn(model, x, name)
        n = len(a)
        for r, curvature in enumerate(g):
            torch.testing.assert_close(
                exact[r * n : r * n + n, r * n : r * n + n], curvature * a, rtol=1e-8, atol=1e-10
            )


def test_output_curvature_of_many_images_is_that_of_the_bias():
    torch.manual_seed(1)
    model, x = _network(), torch.randn(6, 4, dtype=torch.float64)
    for name, (_, g) in _factors(model, x).items():
        torch.testing.assert_close(g, _ggn(model, x, name.replace("weight", "bias")).diagonal(), rtol=1e-8, atol=1e-10)


def test_sampled_output_curvature_has_the_right_mean():
    torch.manual_seed(2)
    model, x = _network(), torch.randn(6, 4, dtype=torch.float64)
    exact, sampled = _factors(model, x), _factors(model, x, samples=4000)
    for name in exact:
        torch.testing.assert_close(sampled[name][1], exact[name][1], rtol=0.05, atol=1e-3)


def test_damping_makes_dead_inputs_harmless():
    a = functional.pad(torch.eye(2)[None] * 4, (0, 1, 0, 1))
    assert torch.linalg.eigvalsh(damped(a, 0.01)).min() > 0
    assert torch.linalg.eigvalsh(damped(torch.zeros(1, 3, 3), 0.01)).min() > 0
