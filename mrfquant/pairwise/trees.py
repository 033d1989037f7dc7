"""Exact inference on a spanning tree of couplings: the same tree for many rows of variables, which share no coupling.

A row's distribution over the labels of its n variables is

    p(labels) ∝ exp( sum over variables of logits - sum over edges (j, parent of j) of c_j x_j x_parent )

where x is the value that a label stands for. Tensors are (d, n, rows): what is done for one variable is done for all
rows at once, and for all variables of the same depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor


class SpanningTree:
    """A rooted tree of n variables.

    Attributes:
        parents: of each variable; the root's is -1.
        levels: (variables, their parents) of depth 1, 2, ... as index tensors.
    """

    def __init__(self, parents: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.parents = list(parents)
        children: dict[int, list[int]] = {}
        for j, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(j)
        (self.root,) = children.get(-1, [])
        self.levels: list[tuple[Tensor, Tensor]] = []
        here = [self.root]
        while below := [j for parent in here for j in children.get(parent, [])]:
            above = [self.parents[j] for j in below]
            self.levels.append((torch.tensor(below, device=device), torch.tensor(above, device=device)))
            here = below

    @classmethod
    def strongest(cls, couplings: Tensor) -> SpanningTree:
        """The spanning tree with the largest sum of |couplings|, (n, n) and symmetric; the diagonal does not count."""
        strength = couplings.detach().abs().double().fill_diagonal_(0).cpu().numpy()
        # To scipy a weight near 0 is no edge: from 1 for the strongest coupling to 2 for none.
        weights = 2 - strength / max(strength.max(), 1e-300)
        _, parents = breadth_first_order(minimum_spanning_tree(weights), 0, directed=False)
        return cls([max(-1, int(p)) for p in parents], couplings.device)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(variable, its parent), parents before their children."""
        return [(j, p) for below, above in self.levels for j, p in zip(below.tolist(), above.tolist(), strict=True)]

    def sum_product(self, logits: Tensor, x: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor]:
        """Marginals (d, n, rows) and log of the normaliser (rows,).

        Args:
            logits: (d, n, rows). x: (d, n or 1, rows or 1) values of the labels. couplings: c (n, rows), the root's
            is ignored.
        """
        beliefs, messages = self._upward(logits, x, couplings, torch.logsumexp)
        log_normaliser = beliefs[:, self.root].logsumexp(0)
        for below, above in self.levels:
            cavity = beliefs[:, above] - messages[:, below]  # what the parent believes without this child
            potential = self._potential(x, couplings, below, above)
            message = (cavity[:, None] + potential).logsumexp(0)
            beliefs = beliefs.index_add(1, below, message)
        return beliefs.softmax(0), log_normaliser

    def max_product(self, logits: Tensor, x: Tensor, couplings: Tensor) -> Tensor:
        """The most probable labels (n, rows), jointly; arguments as for `sum_product`."""
        beliefs, _ = self._upward(logits, x, couplings, torch.amax)
        labels = torch.empty(logits.shape[1:], dtype=torch.int64, device=logits.device)
        labels[self.root] = beliefs[:, self.root].argmax(0)
        for below, above in self.levels:
            potential = self._potential(x, couplings, below, above)
            chosen = labels[above].expand(1, potential.shape[1], -1, -1)
            labels[below] = (beliefs[:, below] + potential.gather(0, chosen)[0]).argmax(0)
        return labels

    def _upward(
        self, logits: Tensor, x: Tensor, couplings: Tensor, collect: Callable[..., Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Beliefs from each variable's own logits and its subtree, and the messages to the parents: (d, n, rows)."""
        beliefs, messages = logits, torch.zeros_like(logits)
        for below, above in reversed(self.levels):
            message = collect(beliefs[:, below] + self._potential(x, couplings, below, above), 1)
            messages = messages.index_copy(1, below, message)
            beliefs = beliefs.index_add(1, above, message)
        return beliefs, messages

    @staticmethod
    def _potential(x: Tensor, couplings: Tensor, below: Tensor, above: Tensor) -> Tensor:
        """-c x_parent x_child: (d of the parent, d of the child, variables, rows)."""
        child, parent = (x, x) if x.shape[1] == 1 else (x[:, below], x[:, above])
        return -couplings[below] * parent[:, None] * child
