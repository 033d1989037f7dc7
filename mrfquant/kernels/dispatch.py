"""Softmax, sparsemax and their products on the CPU, each in one pass over memory.

torch runs a chain of operations one by one, each over all variables. `mrfquant.kernels.simplex` does the whole chain
for a few variables at a time, compiled by numba. `usable` says for which tensors; for others, and without numba (pip
install 'mrfquant[fast]'), the projections call torch, without a word and with the same results to rounding. Names and
shapes are theirs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SMALLEST = 2**14  # values below which torch is as fast: small problems need not wait for numba
PAIR, LINE, WIDE_LINE, NARROW_LINE = range(4)  # kinds of `Mean`
LOG2E = math.log2(math.e)
FADED = 17.0  # -log of a share of u that a float does not notice
SMALLEST_LOG = 70.0  # -log of the smallest float that a sum of them may be
POWERS = 14  # of a variable, multiplied and added in the time of an exponential
NOTHING = np.zeros(0, np.float32)
SHARE = 2**22  # values that are worth a thread, while torch's own still spin from the operation before


def usable(*tensors: Tensor, smallest: int | None = None) -> bool:
    """Whether the functions below take these: many values, float32 on the CPU, contiguous, without autograd."""
    return (
        tensors[0].numel() >= (SMALLEST if smallest is None else smallest)
        and all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)
        and all(t.is_contiguous() and not t.requires_grad for t in tensors)
        and _kernels() is not None
    )


def weights(aux: Tensor, q: Tensor, beta: float, out: Tensor, w: Tensor) -> None:
    """u into `out` (d, m) and the expected weights q u into w (m,)."""
    _run("softmax", aux, beta * math.log2(math.e), q, out, w)


def weights_vjp(u: Tensor, q: Tensor, w: Tensor, g: Tensor, beta: float, exact: bool) -> None:
    """The product for the Jacobian 'exact' or else 'reference', into u."""
    _run("exact_product" if exact else "reference_product", u, q, w, g, beta)


def unary_vjp(u: Tensor, q: Tensor, g: Tensor, parts: Sequence[int], costs: Tensor, beta: float, exact: bool) -> None:
    """The same for the gradient q gᵀ + c, with costs c of the labels (parts, d), less their mean, into u."""
    _run("unary_product", u, q, g, np.cumsum(parts), costs.contiguous(), beta, exact)


@dataclass(frozen=True)
class Mean:
    """The kernel that maps auxiliary variables (m,) to t (m,), and what it has to know.

    Attributes:
        kind: which of the kernels in `mrfquant.kernels.simplex`.
        scale: multiplies the variables in powers of two.
        spacing: of the levels on a line.
        neighbours: of the nearest level that count on either side.
        first: levels, or coefficients of powers.
        second: what goes with them.
    """

    kind: int
    scale: float
    spacing: float = 1.0
    neighbours: int = 0
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()

    @classmethod
    def of_pair(cls, beta: float) -> Mean:
        """tanh(beta ã)."""
        return cls(PAIR, 2 * beta * LOG2E)

    @classmethod
    def of_line(cls, p: Sequence[float], spacing: float, grid: int, beta: float) -> Mean:
        """The mean of p under u ∝ exp(beta (a p - s p² / 2)), over the highest p.

        At large beta only the nearest levels count: the others have less of u than a float's precision.

        Args:
            p: the levels, from 1 - d to d - 1.
            spacing: s.
            grid: the number of equal steps between the lowest and the highest, on whose points the levels lie; 0 if on
                none. It is d - 1 for even levels, 2 apart.
            beta: the inverse temperature.
        """
        levels, top = np.array(p), len(p) - 1
        near = math.ceil(math.sqrt(0.25 + FADED / (2 * beta * spacing)) - 0.5)  # 2 beta s n (n + 1) > FADED
        exponentials = near if grid == top else len(p)  # by the other kernels
        if grid and top**2 * beta * spacing / 2 < SMALLEST_LOG and grid < POWERS * exponentials:
            step = 2 * top / grid
            places, weights = np.rint((levels + top) / step).astype(int), np.zeros(grid + 1 + -(grid + 1) % 4)
            weights[places - (grid + 1)] = np.exp(-beta * spacing / 2 * levels**2)  # at the end: four at a time
            means = weights.copy()
            means[places - (grid + 1)] *= levels / top
            return cls(WIDE_LINE, step * beta * LOG2E, first=tuple(weights), second=tuple(means))
        if grid == top:
            return cls(NARROW_LINE, 2 * beta * LOG2E, spacing, min(near, top), first=(top,))
        return cls(LINE, beta * LOG2E, first=tuple(p), second=tuple(-spacing / 2 * levels**2))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the kernel, between the variables and t."""
        numbers = (np.float32(self.scale), np.float32(self.spacing), self.neighbours)
        return (self.kind, *numbers, np.array(self.first, np.float32), np.array(self.second, np.float32))


def mean(aux: Tensor, how: Mean, out: Tensor) -> None:
    """t into `out` (m,)."""
    _run("mean", aux, *how.arguments, out)


def mean_vjp(t: Tensor, delta: Tensor, factor: float, share: float, centre: float = 0.0) -> None:
    """factor (1 - share (t - centre)²) δ into δ."""
    _run("mean_product", t, delta, factor, factor * share, centre)


class Costs(NamedTuple):
    """Costs of labels as a gradient on t.

    Of a pair, or of three even levels on a line, it is slope + bend sinh(x) / (cosh(x) + soft / 2) for
    x = scale log(2) a; of other lines it is computed from u.

    Attributes:
        ends: (parts,) the variable after the last one of each part.
        numbers: (parts, 2) slope and bend of each part; or (parts, d) the costs.
        curve: (2,) scale and soft.
        points: (2, d) levels p and -s p² / 2 of such another line; or (2, 0).
    """

    ends: np.ndarray
    numbers: np.ndarray
    curve: np.ndarray
    points: np.ndarray = np.zeros((2, 0), np.float32)


NO_COSTS = Costs(np.zeros(0, np.int64), np.zeros((0, 2), np.float32), np.zeros(2, np.float32))


def step(
    x: Tensor,
    g: Tensor,
    w: Tensor,
    scale: Tensor | None,
    levels: tuple[float, float],
    product: tuple[float, float, float],
    rule: tuple[str, tuple[float, ...], Tensor, Tensor],
    how: Mean,
    costs: Costs = NO_COSTS,
) -> None:
    """Move x along the product with g (`mean_vjp`) by the rule of an optimizer, write w, and clear g: (m,) each.

    Args:
        x: auxiliary variables.
        g: the gradient with respect to w.
        w: the weights before and after.
        scale: of every weight, if not 1.
        levels: their middle, and half the gap between the lowest and the highest.
        product: f, a and c of `mean_vjp`.
        rule: 'adam' or 'sgd', its settings, and its two running averages, see `mrfquant.inference.one_pass.Rule`.
        how: the map from x to t, of which w is made.
        costs: of labels, whose gradient on t is added to that of w.
    """
    from mrfquant.kernels import steps

    kind, settings, first, second = rule
    factor, share, centre = product
    every = NOTHING if scale is None else scale
    numbers = [np.array(values, np.float32) for values in (levels, (factor, factor * share, centre), settings)]
    rest = (kind == "adam", numbers[2], first, second, *how.arguments)
    _call(steps.step, x, g, w, every, *numbers[:2], *costs, *rest)


def sparsemax(aux: Tensor, beta: float, out: Tensor) -> None:
    """u into `out` (d, m), which may be ũ itself."""
    _run("sparsemax", aux, beta, out)


def sparsemax_vjp(u: Tensor, g: Tensor, beta: float) -> None:
    """The product with g (d, m), into g."""
    _run("sparsemax_product", u, g, beta)


def tree_marginals(
    fields: Tensor,
    order: np.ndarray[Any, Any],
    parents: np.ndarray[Any, Any],
    edges: Tensor,
    factors: Tensor,
    scale: Tensor | None,
) -> Tensor:
    """t (rows, n) of two labels on a tree; see `mrfquant.pairwise.trees.SpanningTree.pair_marginals`.

    Args:
        order: the variables that have a parent, parents before their children. parents: of the variables.
    """
    from mrfquant.kernels.jit import parallel_ranges
    from mrfquant.kernels.trees import ROWS, pair_marginals

    out, unit = torch.empty_like(fields), np.float32(2 * LOG2E)
    values = fields[:, :0] if scale is None else scale
    arrays = [t.numpy() for t in (edges, factors * -float(unit), values)]
    kernel = functools.partial(pair_marginals, fields.numpy(), order, parents, *arrays, unit, out.numpy())
    parallel_ranges(kernel, len(fields), ROWS)
    return out


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from mrfquant.kernels import simplex as projection_kernels
    except ImportError:
        return None
    return projection_kernels


def _for_kernel(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.numpy()
    return np.float32(argument) if isinstance(argument, float) else argument


def _run(name: str, first: Tensor, *others: Any) -> None:
    """Call a kernel for all m variables of its first argument, of shape (m,) or (d, m)."""
    _call(getattr(_kernels(), name), first, *others)


def _call(kernel: Callable[..., None], first: Tensor, *others: Any) -> None:
    from mrfquant.kernels.jit import parallel_ranges

    arrays = [_for_kernel(argument) for argument in (first, *others)]
    m = first.shape[-1]
    parallel_ranges(functools.partial(kernel, *arrays), m, SHARE * m // first.numel())
