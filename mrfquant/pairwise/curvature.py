"""Kronecker-factored curvature of linear and convolutional layers: second moments of inputs times output curvature.

For a row r of the weight matrix (an output), the curvature of the loss is about g_r A (the generalised Gauss-Newton
matrix in the factors of Martens and Grosse, 2015, and Grosse and Martens, 2016):

    A = E[ sum over positions of x xᵀ ]          x: the inputs that a position's output is computed from
    g_r = E[ mean over positions of (Jᵀ H J)_rr ]  J: of the logits with respect to the output, H: of the loss

A linear layer has one position, a convolution one per output pixel. Rows are independent of each other and share A,
per group of a grouped convolution.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Layer = nn.Linear | nn.Conv2d
GRAM_ROWS = 256  # rows of a symmetric product that are computed at once


def curved_layers(model: nn.Module) -> dict[str, Layer]:
    """Return the linear and convolutional layers by the name of their weight, in the order of the parameters."""
    return {f"{name}.weight".lstrip("."): layer for name, layer in model.named_modules() if isinstance(layer, Layer)}


def groups(layer: Layer) -> int:
    """Return the number of groups of rows, each with its own A."""
    return layer.groups if isinstance(layer, nn.Conv2d) else 1


def second_moments(layer: Layer, inputs: Tensor, sample_pixels: bool = False) -> Tensor:
    """Return A of a batch of the layer's inputs: (groups, n, n).

    With `sample_pixels`, from a random sample of a convolution's output pixels, so small that A costs about as much as
    the layer's forward pass.
    """
    if isinstance(layer, nn.Linear):
        return _gram(inputs.reshape(-1, layer.in_features))[None] / len(inputs)
    patches, share = _patches(layer, inputs, sample_pixels)  # (b, c, p, kh, kw)
    b, c, p = patches.shape[:3]
    columns = patches.reshape(b, layer.groups, c // layer.groups, p, -1).permute(1, 0, 3, 2, 4)
    columns = columns.reshape(layer.groups, b * p, -1)
    return torch.stack([_gram(group) for group in columns]) / (b * share)


def pixels_drawn(layer: nn.Conv2d, pixels: int) -> int:
    """Return how many of a convolution's output pixels a sample has."""
    rows, n = len(layer.weight) // layer.groups, layer.weight[0].numel()
    return min(pixels, math.ceil(pixels * rows / n))


def output_curvature(
    layers: Sequence[Layer], outputs: Sequence[Tensor], logits: Tensor, samples: int | None = None
) -> list[Tensor]:
    """Return g of every layer, (rows,) each, for the mean cross-entropy of softmax(logits).

    The layers' outputs are in the graph of the logits (b, classes). With `samples`, labels are drawn from the
    predictions; None is exact and takes a backward pass per class.
    """
    p = logits.detach().softmax(1)
    classes = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
    if samples is None:
        # H = diag(p) - p pᵀ = sum over classes c of p_c (e_c - p)(e_c - p)ᵀ.
        roots = [weight.sqrt()[:, None] * (one - p) for one, weight in zip(classes, p.T, strict=True)]
    else:
        drawn = torch.multinomial(p, samples, replacement=True)
        roots = [(classes[labels] - p) / math.sqrt(samples) for labels in drawn.T]
    totals = [layer.weight.new_zeros(len(layer.weight)) for layer in layers]
    for root in roots:
        gradients = torch.autograd.grad(logits, list(outputs), root.to(logits.dtype), retain_graph=True)
        for layer, total, gradient in zip(layers, totals, gradients, strict=True):
            by_row = gradient.movedim(-1 if isinstance(layer, nn.Linear) else 1, 0)
            total += by_row.flatten(1).square().mean(1)
    return totals


def damped(a: Tensor, share: float) -> Tensor:
    """Add a fraction of A's mean diagonal entry to the diagonal of A (..., n, n).

    Inputs that are always 0 get all of it.
    """
    diagonal = a.diagonal(dim1=-2, dim2=-1)
    mean = diagonal.mean(-1, keepdim=True)
    mean = torch.where(mean > 0, mean, torch.ones_like(mean))
    return a + torch.diag_embed(share * mean + (diagonal == 0) * mean)


def _gram(x: Tensor) -> Tensor:
    """Return xᵀ x, computing little more than half of this symmetric product."""
    n = x.shape[1]
    out = x.new_empty(n, n)
    for start in range(0, n, GRAM_ROWS):
        stop = min(n, start + GRAM_ROWS)
        torch.mm(x[:, start:stop].T, x[:, start:], out=out[start:stop, start:])
        out[stop:, start:stop] = out[start:stop, stop:].T
    return out


def _patches(layer: nn.Conv2d, inputs: Tensor, sample_pixels: bool) -> tuple[Tensor, float]:
    """Return the windows of output pixels, (b, c, p, kh, kw), and the fraction of all pixels that they are."""
    if layer.padding == "same":
        total = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    elif isinstance(layer.padding, str):  # "valid"
        pads = [(0, 0), (0, 0)]
    else:
        pads = [(p, p) for p in layer.padding]
    if any(map(any, pads)):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = functional.pad(inputs, (*pads[1], *pads[0]), mode=mode)
    windows = inputs  # a view: (b, c, h', w', kh, kw)
    for axis in (0, 1):
        size = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        windows = windows.unfold(2 + axis, size, layer.stride[axis])[..., :: layer.dilation[axis]]
    height, width = windows.shape[2:4]
    pixels = height * width
    if not sample_pixels or pixels_drawn(layer, pixels) == pixels:
        return windows.flatten(2, 3), 1.0
    drawn = torch.randperm(pixels, device=inputs.device)[: pixels_drawn(layer, pixels)]
    return windows[:, :, drawn // width, drawn % width], len(drawn) / pixels
