"""All parameters of a network in one vector: one optimizer tensor, one kernel launch, one all-reduce."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.compute import Team
from mrfquant.errors import BadInput
from mrfquant.labelling.matrices import PLAIN, Matrix
from mrfquant.labelling.shards import Shards


class FlatParameters:
    """The vectors `w` and `g`, of which the given parameters and their gradients are views.

    The network stays an ordinary module: it reads its parameters where they always were, and backward adds into `g`.
    Moving or converting the module afterwards cuts the views: do it before; `collect` notices, and
    `check_same_parameters` notices parameters that were replaced.

    Parameters of half precision are views of a second pair of vectors in their type; `w` and `g` are float32, so that
    small updates add up. `publish` rounds `w` to what the network has, `collect` adds its gradients to `g`.

    Args:
        parameters: by name. team: the processes that share the vectors, if they do. adopts_writes: whether values that
            others write to the parameters are taken over. matrices: how those are matrices that are not as nn.Linear's.

    Attributes:
        w: (m,) values. g: (m,) gradient, accumulated by backward.
        dtype: of the network's parameters.
        spans: name -> (start, stop) within the vectors, in the order given.
        shards: how processes share the vectors; None if they do not.
        any_frozen: whether a parameter asked for no gradient when `collect` looked last.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        team: Team | None = None,
        adopts_writes: bool = False,
        matrices: Mapping[str, Matrix] | None = None,
    ) -> None:
        kinds = {(p.dtype, p.device) for p in parameters.values()}
        if len(kinds) > 1:
            found = ", ".join(f"{dtype} on {device}" for dtype, device in sorted(kinds, key=str))
            raise BadInput(f"the parameters are {found}: convert the network to one type on one device first")
        self.dtype, device = kinds.pop() if kinds else (torch.float32, None)
        if self.dtype.is_complex:
            raise BadInput(f"the parameters are {self.dtype}: levels are real numbers, convert the network first")
        wide = torch.promote_types(self.dtype, torch.float32)
        m = sum(p.numel() for p in parameters.values())
        self.shards = None if team is None else Shards(m, team)
        self._room_w = torch.zeros(m if self.shards is None else self.shards.room, dtype=wide, device=device)
        self._room_g = torch.zeros_like(self._room_w)
        self.w, self.g = self._room_w[:m], self._room_g[:m]
        # What the network reads and backward writes: these very vectors, if the precision allows it.
        half = self.dtype != wide  # the network's parameters have memory of their own then
        self.any_frozen = False
        self._adopts_writes = adopts_writes and half
        self._seen_w = torch.empty_like(self.w, dtype=self.dtype) if half else self.w
        self._seen_g = torch.zeros_like(self._seen_w) if half else self.g
        self.spans: dict[str, tuple[int, int]] = {}
        self._parameters = dict(parameters)
        self._matrices = matrices or {}
        start = 0
        for name, p in parameters.items():
            self.spans[name] = (start, start + p.numel())
            value = self._seen_w.as_strided(p.shape, _strides(p, self.matrix(name)), start)
            value.copy_(p.detach())
            p.data = value
            start += p.numel()
        size = self.dtype.itemsize
        self._places = {name: first * size for name, (first, last) in self.spans.items() if first < last}  # in bytes
        self.w.copy_(self._seen_w)
        self._attach()

    def __len__(self) -> int:
        return self.w.numel()

    def view(self, name: str, of: Tensor) -> Tensor:
        """Return the part of the vector `of` (m,) that belongs to the parameter `name`, in its shape."""
        return part_of(of, self._parameters[name], self.spans[name][0])

    def collect(self) -> None:
        """Make sure that `g` holds the gradient: `zero_grad` cuts the views, and backward then makes new tensors.

        Raises:
            BadInput: the parameters themselves are no views any more.
        """
        if self._adopts_writes:
            self._adopt_written()
        values, gradients = self._seen_w.data_ptr(), self._seen_g.data_ptr()  # shared memory moves them
        self.any_frozen = False
        for name, place in self._places.items():  # two pointers each: microseconds
            p = self._parameters[name]
            if not p.requires_grad:
                self.any_frozen = True
            if p.data_ptr() != values + place:
                raise _cut(name)
            if p.grad is None or p.grad.data_ptr() != gradients + place:
                view = self.view(name, self._seen_g)
                if p.grad is None:
                    view.zero_()
                else:
                    view.copy_(p.grad)
                p.grad = view
        if self._seen_g is not self.g:
            self.g.add_(self._seen_g)
            self._seen_g.zero_()  # it is counted

    @property
    def own(self) -> slice:
        """The part of the vectors that this process moves: all of them, if they are not shared out."""
        return slice(0, len(self)) if self.shards is None else slice(*self.shards.span(0, len(self)))

    def scatter_gradient(self) -> None:
        """Replace this process's part of `g` by its mean over the processes; the rest is of no use any more."""
        if self.shards is not None and len(self):
            self.shards.team.scatter_mean(self._room_g, self._part(self._room_g))

    def gather_weights(self) -> None:
        """Bring the parts that the processes have of `w` into every one of them."""
        if self.shards is not None and len(self):
            self.shards.team.gather(self._room_w, self._part(self._room_w))

    def _part(self, room: Tensor) -> Tensor:
        assert self.shards is not None
        return room[self.shards.team.rank * self.shards.length :][: self.shards.length]

    def publish(self) -> None:
        """Show the network what `w` says."""
        if self._seen_w is not self.w:
            self._seen_w.copy_(self.w)

    def _adopt_written(self) -> None:
        """Take into `w` what others have written to the parameters, which have memory of their own."""
        for name, p in self._parameters.items():
            if p._version != self._versions[name]:
                self.view(name, self.w).copy_(p.detach())
        self.mark_clean()

    def zero_gradient(self) -> None:
        """Clear what backward has accumulated."""
        self.g.zero_()
        if self._seen_g is not self.g:
            self._seen_g.zero_()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In the order of the vectors."""
        return list(self._parameters.values())

    def parameter(self, name: str) -> nn.Parameter:
        """Return the parameter of that name."""
        return self._parameters[name]

    def matrix(self, name: str) -> Matrix:
        """Return how a parameter is a matrix; in the vectors its rows follow each other."""
        return self._matrices.get(name, PLAIN)

    def span_of(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the common span of parameters that follow each other."""
        spans = [self.spans[name] for name in names]
        return spans[0][0], spans[-1][1]

    def frozen(self) -> list[tuple[int, int]]:
        """Return the spans of the parameters that do not ask for a gradient at the moment."""
        return [self.spans[name] for name, p in self._parameters.items() if not p.requires_grad]

    def check_not_written(self) -> None:
        """Raise BadInput if something else than the vectors has written to a parameter, as `load_state_dict` does."""
        written = [name for name, p in self._parameters.items() if p._version != self._versions[name]]
        if written:
            raise BadInput(
                f"{written[0]} was changed beside its solver, as by load_state_dict: load the solver's "
                "own state, too, which a checkpoint has as that of the optimizer (optimizer.pt of transformers' "
                "Trainer), or load the weights first and build the solver after it, with start='weights'"
            )

    def mark_clean(self) -> None:
        """Remember the parameters' versions, to detect later writes by others."""
        self._versions = {name: p._version for name, p in self._parameters.items()}

    def release(self) -> None:
        """Give the parameters memory of their own, with the values that they have now, and no gradient."""
        for name, p in self._parameters.items():
            own = torch.contiguous_format if self.matrix(name).turned else torch.preserve_format
            p.data, p.grad = p.data.clone(memory_format=own), None

    def check_same_parameters(self, present: Mapping[str, nn.Parameter]) -> None:
        """Raise BadInput unless the network's present parameters are those given at first."""
        for name, p in self._parameters.items():
            if present.get(name) is not p:
                raise _cut(name)

    def _attach(self) -> None:
        for name, p in self._parameters.items():
            p.grad = self.view(name, self._seen_g)
        self.mark_clean()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy vectors of its own: its parameters are views of them, at other places."""
        self.__dict__.update(state)
        for name, p in self._parameters.items():
            p.data = self.view(name, self._seen_w)
        self._attach()


def part_of(vector: Tensor, like: Tensor, start: int) -> Tensor:
    """Return the values of a vector from `start` on, as a view with the shape and the strides of `like`."""
    return vector.as_strided(like.shape, like.stride(), vector.storage_offset() + start)


def _strides(p: Tensor, matrix: Matrix) -> tuple[int, ...]:
    """Return the strides that p takes in a vector: its own (channels_last stays so), if rows follow each other."""
    if matrix.turned:
        return matrix.back(torch.empty(matrix.rows(p.shape), device="meta"), p.shape).stride()
    strides = torch.empty_like(p).stride()
    in_rows = p.dim() < 2 or strides[0] * len(p) == p.numel()
    return strides if in_rows else torch.empty(p.shape, device="meta").stride()


def _cut(name: str) -> BadInput:
    return BadInput(
        f"{name} is no part of this labelling any more: the network was moved, converted, changed or labelled again; "
        "build the labelling and the solver after that"
    )
