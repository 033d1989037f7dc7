"""Projections onto the simplex with their products, forward and backward, against autograd through other libraries."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mrfquant.benchmarks.timing import Options, Row, in_turns, peer, ratios
from mrfquant.projections import Softmax, Sparsemax

VARIABLES = 266_610  # those of LeNet-300
LABELS = (2, 4, 16)


def measure_projections(options: Options) -> Iterator[tuple[str, Row]]:
    """Time a map, with expected weights for softmax, and its product; autograd's through others as ratios to it."""
    entmax = peer("entmax", "entmax") if options.peers else None
    for d in LABELS:
        aux, q, g = torch.randn(d, VARIABLES), torch.linspace(-1, 1, d), torch.randn(VARIABLES)
        sides = {"mrfquant": _softmax(aux, q, g), "torch": _autograd(_expectation(q, 1), aux.t(), g)}
        sides["torch on planes"] = _autograd(_expectation(q, 0), aux, g)
        yield f"softmax, d={d}", ratios(in_turns(sides, options))
    for d in LABELS:
        aux, g = torch.randn(d, VARIABLES), torch.randn(d, VARIABLES)
        sides = {"mrfquant": _sparsemax(aux, g)}
        if entmax:
            sides["entmax"] = _autograd(lambda x: entmax.sparsemax(x, dim=1), aux.t(), g.t().contiguous())
            sides["entmax on planes"] = _autograd(lambda x: entmax.sparsemax(x, dim=0), aux, g)
        yield f"sparsemax, d={d}", ratios(in_turns(sides, options))


def _softmax(aux: Tensor, q: Tensor, g: Tensor) -> Callable[[], Any]:
    u, w, projection = torch.empty_like(aux), torch.empty_like(g), Softmax("exact")

    def both() -> Tensor:
        projection.weights(aux, q, 1.0, u, w)
        return projection.weights_vjp(u, q[:, None], w, g, 1.0, aux)

    return both


def _sparsemax(aux: Tensor, g: Tensor) -> Callable[[], Any]:
    u, product, projection = torch.empty_like(aux), torch.empty_like(g), Sparsemax()
    return lambda: projection.planes_vjp(projection.planes(aux, 1.0, out=u), product.copy_(g), 1.0, aux)


def _expectation(q: Tensor, labels: int) -> Callable[[Tensor], Tensor]:
    """Take softmax over the labels' dimension and the expected weights that follow it."""
    return (lambda x: x.softmax(1) @ q) if labels else (lambda x: q @ x.softmax(0))


def _autograd(function: Callable[[Tensor], Tensor], aux: Tensor, g: Tensor) -> Callable[[], Any]:
    aux = aux.clone(memory_format=torch.contiguous_format).requires_grad_()

    def both() -> None:
        aux.grad = None
        function(aux).backward(g)

    return both
