"""Inference as a layer of a network: marginals of batches of pairwise fields, differentiable in all potentials.

A field has n variables of c labels and E edges that all items of a batch share; potentials are tensors,

    log p(x) = sum_i unary_i(x_i) + sum_ij pairs_ij(x_i, x_j) - log Z.

Gradients go through the iterations, or, for belief propagation, through the fixed point alone: with messages
m = f(m, θ) at rest, dm/dθ = (I - df/dm)^-1 df/dθ, which needs no memory for the iterations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mrfquant.errors import BadInput

ADJOINT_ITERATIONS = 200  # for the gradient at a fixed point
ADJOINT_TOLERANCE = 1e-10


def grid_edges(rows: int, columns: int) -> Tensor:
    """Return the edges of a grid of pixels, numbered row by row: (E, 2)."""
    number = torch.arange(rows * columns).view(rows, columns)
    right = torch.stack([number[:, :-1], number[:, 1:]], -1).view(-1, 2)
    down = torch.stack([number[:-1], number[1:]], -1).view(-1, 2)
    return torch.cat([right, down])


def crf_mean_field(unary: Tensor, edges: Tensor, pairs: Tensor, iterations: int = 10, damping: float = 0.5) -> Tensor:
    """Return the marginals (B, n, c) of mean-field after some parallel iterations from softmax of the unary terms.

    Args:
        unary: (B, n, c).
        edges: (E, 2) variables.
        pairs: (c, c) for all edges, (E, c, c), or (B, E, c, c).
        iterations: number of iterations.
        damping: the fraction of the old marginals that stays.
    """
    pairs = _checked(unary, edges, pairs)
    first, second = edges.unbind(1)
    u = unary.softmax(-1)
    for _ in range(iterations):
        to_first = (pairs @ u[:, second, :, None])[..., 0]
        to_second = (pairs.transpose(-1, -2) @ u[:, first, :, None])[..., 0]
        fields = unary.index_add(1, first, to_first).index_add(1, second, to_second)
        u = damping * u + (1 - damping) * fields.softmax(-1)
    return u


def crf_belief_propagation(
    unary: Tensor,
    edges: Tensor,
    pairs: Tensor,
    weights: Tensor | float = 1.0,
    iterations: int = 20,
    damping: float = 0.0,
    implicit: bool = False,
) -> Tensor:
    """Return the marginals (B, n, c) of belief propagation; exact on trees after as many iterations as they are long.

    Args:
        unary: (B, n, c).
        edges: (E, 2) variables.
        pairs: (c, c) for all edges, (E, c, c), or (B, E, c, c).
        weights: 1, or for tree-reweighted propagation the appearance probabilities of edges, a number or (E,).
        iterations: number of parallel updates of all messages.
        damping: the fraction of the old messages that stays.
        implicit: take the gradient at the fixed point, which the iterations have to reach.
    """
    pairs = _checked(unary, edges, pairs)
    weights = torch.as_tensor(weights, dtype=unary.dtype, device=unary.device).expand(len(edges))
    into = torch.cat([edges[:, 1], edges[:, 0]])  # messages along the edges, then against them
    out = torch.cat([edges[:, 0], edges[:, 1]])
    back = torch.arange(2 * len(edges), device=unary.device).roll(len(edges))
    scaled = pairs / weights[:, None, None]
    tables = torch.cat([scaled, scaled.transpose(-1, -2)], -3)  # (..., 2E, from, to)
    rho = torch.cat([weights, weights])[:, None]

    def beliefs(messages: Tensor) -> Tensor:
        return unary.index_add(1, into, rho * messages)

    def update(messages: Tensor) -> Tensor:
        cavity = beliefs(messages)[:, out] - messages[:, back]
        new = (tables + cavity[..., None]).logsumexp(-2).log_softmax(-1)
        return damping * messages + (1 - damping) * new

    messages = unary.new_zeros(len(unary), 2 * len(edges), unary.shape[-1])
    with torch.set_grad_enabled(torch.is_grad_enabled() and not implicit):
        for _ in range(iterations):
            messages = update(messages)
    if implicit and torch.is_grad_enabled():
        messages = _at_fixed_point(update, messages)
    return beliefs(messages).softmax(-1)


def _at_fixed_point(update: Callable[[Tensor], Tensor], messages: Tensor) -> Tensor:
    """Return the messages with the gradient of the fixed point."""
    start = messages.detach().requires_grad_()
    again = update(start)
    attached = update(messages.detach())

    def solve(gradient: Tensor) -> Tensor:
        """Return (I - df/dm)^-T g by g + J^T g + J^T J^T g + ..."""
        total = gradient
        for _ in range(ADJOINT_ITERATIONS):
            (moved,) = torch.autograd.grad(again, start, total, retain_graph=True)
            before, total = total, gradient + moved
            if (total - before).abs().max() <= ADJOINT_TOLERANCE:
                break
        return total

    if attached.requires_grad:
        attached.register_hook(solve)
    return attached


def _checked(unary: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
    """Return the pairs' potentials as (..., E, c, c); refuse shapes that do not fit."""
    if unary.dim() != 3 or edges.dim() != 2 or edges.shape[1] != 2:
        told = f"unary terms of shape {tuple(unary.shape)} and edges of shape {tuple(edges.shape)}"
        raise BadInput(f"{told}, expected (batch, variables, labels) and (edges, 2)")
    c, count = unary.shape[-1], len(edges)
    if tuple(pairs.shape) not in {(c, c), (count, c, c), (len(unary), count, c, c)}:
        told = f"pairs of shape {tuple(pairs.shape)} for {count} edges and {c} labels"
        raise BadInput(f"{told}, expected ({c}, {c}), ({count}, {c}, {c}) or ({len(unary)}, {count}, {c}, {c})")
    return pairs.expand(count, c, c) if pairs.dim() == 2 else pairs
