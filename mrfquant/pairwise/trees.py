"""Exact inference on a spanning tree of couplings: the same tree for many rows of variables, which share no coupling.

A row's distribution over the labels of its n variables is

    p(labels) ∝ exp( sum over variables of logits - sum over edges (j, parent of j) of c_j x_j x_parent )

where x is the value of a label. Tensors are (d, n, rows): operations cover all rows, and all variables of a depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

from mrfquant.kernels import dispatch
from mrfquant.kernels.fused import LOG2E

MIN_COMPILED_SIZE = 2**9  # variables of all rows from which compiled loops are faster
MIN_ROWS = 32  # of a thread
UNIT = 2 * LOG2E  # fields to base e in the loops' units


class SpanningTree:
    """A rooted tree of n variables, or several disjoint ones.

    Attributes:
        parents: parent of each variable; a root's is -1.
        roots: roots of the trees.
        above: (n,) the parents as an index tensor, where a root's is 0.
        levels: (variables, their parents) of depth 1, 2, ... as index tensors.
    """

    def __init__(self, parents: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.parents = list(parents)
        children: dict[int, list[int]] = {}
        for j, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(j)
        self.roots = children.get(-1, [])
        self.levels: list[tuple[Tensor, Tensor]] = []
        here, order = self.roots, list[int]()
        while below := [j for parent in here for j in children.get(parent, [])]:
            above = [self.parents[j] for j in below]
            self.levels.append((torch.tensor(below, device=device), torch.tensor(above, device=device)))
            here, order = below, order + below
        self.above = torch.tensor(self.parents, device=device).clamp(min=0)
        self._order, self._parents = np.array(order, np.int64), np.array(self.parents, np.int64)

    @classmethod
    def strongest(cls, couplings: Tensor) -> SpanningTree:
        """Return the spanning tree with the largest sum of |couplings|, (n, n) and symmetric, without the diagonal."""
        strength = couplings.detach().abs().double().fill_diagonal_(0).cpu().numpy()
        # To scipy a weight near 0 is no edge: from 1 for the strongest coupling to 2 for none.
        weights = 2 - strength / max(strength.max(), 1e-300)
        _, parents = breadth_first_order(minimum_spanning_tree(weights), 0, directed=False)
        return cls([max(-1, int(p)) for p in parents], couplings.device)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Pairs (variable, its parent), parents before their children."""
        return [(j, p) for below, above in self.levels for j, p in zip(below.tolist(), above.tolist(), strict=True)]

    def sum_product(self, logits: Tensor, x: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor]:
        """Return marginals (d, n, rows) and the logarithm of the normaliser (rows,).

        Given are logits (d, n, rows), values x of the labels (d, n or 1, rows or 1) and couplings c (n, rows), of which
        the root's is ignored.
        """
        beliefs, messages = self._upward(logits, x, couplings, torch.logsumexp)
        log_normaliser = beliefs[:, self.roots].logsumexp(0).sum(0)
        for below, above in self.levels:
            cavity = beliefs[:, above] - messages[:, below]  # what the parent believes without this child
            potential = self._potential(x, couplings, below, above)
            message = (cavity[:, None] + potential).logsumexp(0)
            beliefs = beliefs.index_add(1, below, message)
        return beliefs.softmax(0), log_normaliser

    def pair_marginals(self, fields: Tensor, couplings: Tensor, factors: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return t = u_2 - u_1 (rows, n) by `sum_product` for two labels, y = -1 and y = 1, of the values x = s y:

            p(labels) ∝ exp( sum over variables of field y - sum over edges of factor c_j x_j x_parent )

        for fields (rows, n), couplings c (n,), whose root's is ignored, factors (rows,) and scale s (rows, n) or 1.
        """
        tensors = [t for t in (fields, couplings, factors, scale) if t is not None]
        if dispatch.usable(*tensors, smallest=MIN_COMPILED_SIZE):
            out, values = torch.empty_like(fields), fields[:, :0] if scale is None else scale
            given = (self._order, self._parents, couplings, factors * -UNIT, values, UNIT)
            dispatch.run("trees.pair_marginals", fields, *given, out, size=len(fields), smallest=MIN_ROWS)
            return out
        x = fields.new_ones(1, 1) if scale is None else scale.T
        both = torch.tensor([-1.0, 1.0], dtype=fields.dtype, device=fields.device)[:, None, None]
        first, second = self.sum_product(both * fields.T, both * x, couplings[:, None] * factors)[0]
        return (second - first).T

    def max_product(self, logits: Tensor, x: Tensor, couplings: Tensor) -> Tensor:
        """Return the jointly most probable labels (n, rows); arguments as for `sum_product`."""
        beliefs, _ = self._upward(logits, x, couplings, torch.amax)
        labels = torch.empty(logits.shape[1:], dtype=torch.int64, device=logits.device)
        labels[self.roots] = beliefs[:, self.roots].argmax(0)
        for below, above in self.levels:
            potential = self._potential(x, couplings, below, above)
            chosen = labels[above].expand(1, potential.shape[1], -1, -1)
            labels[below] = (beliefs[:, below] + potential.gather(0, chosen)[0]).argmax(0)
        return labels

    def _upward(
        self, logits: Tensor, x: Tensor, couplings: Tensor, collect: Callable[..., Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return beliefs from each variable's own logits and its subtree, and messages to the parents: (d, n, rows)."""
        beliefs, messages = logits, torch.zeros_like(logits)
        for below, above in reversed(self.levels):
            message = collect(beliefs[:, below] + self._potential(x, couplings, below, above), 1)
            messages = messages.index_copy(1, below, message)
            beliefs = beliefs.index_add(1, above, message)
        return beliefs, messages

    @staticmethod
    def _potential(x: Tensor, couplings: Tensor, below: Tensor, above: Tensor) -> Tensor:
        """Return -c x_parent x_child: (d of the parent, d of the child, variables, rows)."""
        child, parent = (x, x) if x.shape[1] == 1 else (x[:, below], x[:, above])
        return -couplings[below] * parent[:, None] * child
