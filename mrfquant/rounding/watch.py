"""Watching a network compute: which weights are used on what, and what is added to what comes of it."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from mrfquant.rounding.products import ARGUMENTS, Product

ADDITIONS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
SAME_VALUES = ("reshape", "view", "flatten", "squeeze", "unsqueeze", "contiguous", "clone", "to")
RESHAPES = {torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze, functional.dropout} | {
    getattr(Tensor, name) for name in SAME_VALUES
}
PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
SWAPS = {torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes}
CHOICES = {torch.index_select, Tensor.index_select, torch.gather, Tensor.gather, Tensor.__getitem__} | {
    torch.masked_select,
    Tensor.masked_select,
}
Back = Callable[[Tensor], Tensor]  # a change of a later tensor as the change of the output that makes it


class Reached(Exception):
    """The rest of the forward is not needed."""


@dataclass
class Use:
    """A call of a weight or of a norm that is watched.

    Attributes:
        name: of the weight or norm.
        product: what was computed; None for a norm.
        inputs: of it.
        shortcut: what a weight's outputs, or what comes of them, are added to; None where there is no such sum.
        back: from a change of that sum to the change of the outputs behind it.
        routed: its inputs were chosen by what the network computed: another network may choose others.
        added: its outputs are added to something, be it the result of weights that are not rounded yet.
    """

    name: str
    product: Product | None
    inputs: Tensor
    routed: bool
    added: bool = False
    shortcut: Tensor | None = None
    back: Back | None = None


@dataclass(frozen=True)
class Origin:
    """What is known of a tensor.

    Attributes:
        computed: it depends on the weights of some layer.
        pending: it depends on weights that are not rounded yet.
        routed: which inputs it has was chosen by what the network computed.
        units: the numbers of those units of which it is made since the last one.
        branch: the use that it comes of, and the way back, where there is nothing but an affine map between them.
    """

    computed: bool = False
    pending: bool = False
    routed: bool = False
    units: frozenset[int] = frozenset()
    branch: tuple[Use, Back] | None = None


UNKNOWN = Origin()


class Watch(TorchFunctionMode):
    """While it is on, uses of a weight or a norm are recorded.

    Args:
        pending: the weights that are not rounded yet, by name.
        norms: batch norms, by name.
        wanted: the names of those whose uses are recorded.
        enough: the number of uses after which the forward ends by Reached.
        sums: it ends when they are parts of sums.

    Attributes:
        uses: of what is wanted, in their order.
    """

    def __init__(
        self,
        pending: Mapping[str, Tensor],
        norms: Mapping[str, nn.Module] | None = None,
        wanted: Collection[str] = (),
        enough: int | None = None,
        sums: bool = False,
    ) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.wanted, self.enough, self.sums = wanted, enough, sums
        self._places = {name: (p.data_ptr(), p.data_ptr() + p.nbytes) for name, p in pending.items()}
        self._pending = dict(pending)
        self._norms = {id(norm.running_mean): name for name, norm in (norms or {}).items()}
        self._origins: Any = WeakIdKeyDictionary()

    def used(self, name: str, product: Product | None, inputs: Tensor, routed: bool) -> Use | None:
        """Called whenever a pending weight or a norm is used; gives a use whose output is to be followed."""
        if name not in self.wanted:
            return None
        ends = len(self.uses) + 1 == self.enough and not self.sums
        if not ends:  # what follows may write to them
            inputs, product = inputs.clone(), product and product.copied()
        self.uses.append(Use(name, product, inputs, routed))
        if ends:
            raise Reached
        return self.uses[-1]

    def touched(self, unit: int) -> None:
        """Called with the number of a unit whenever what is made of its output is read."""

    def mark(self, unit: int, tensor: Tensor) -> None:
        """A tensor is the output of a unit."""
        self._origins[tensor] = replace(self._origin(tensor), computed=True, units=frozenset([unit]))

    def __torch_function__(
        self, func: Callable[..., Any], _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:  # has products within
            with self:
                return _unguarded(func)(*args, **kwargs)
        if getattr(func, "__name__", "") in ("__get__", "size", "dim"):
            return func(*args, **kwargs)
        given = [self._origin(tensor) for tensor in _tensors((args, kwargs))]
        if func in ADDITIONS:
            self._added(args, kwargs)
        output = func(*args, **kwargs)
        origin = Origin(
            computed=func in ARGUMENTS or any(of.computed for of in given),
            pending=any(of.pending for of in given),
            routed=any(of.routed for of in given) or (func in CHOICES and self._chosen(args, kwargs)),
            units=frozenset().union(*(of.units for of in given)),
        )
        for unit in origin.units:
            self.touched(unit)
        if func in ARGUMENTS:
            origin = self._product(func, args, kwargs, output, origin)
        elif func is functional.batch_norm:
            origin = self._norm(args, kwargs, origin)
        else:
            origin = replace(origin, branch=self._onwards(func, args, kwargs))
        for tensor in _tensors(args[0] if func is Tensor.__setitem__ else output):
            self._origins[tensor] = origin
        return output

    def _product(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor, origin: Origin
    ) -> Origin:
        product = Product.of(func, args, kwargs, output)
        name = self._name(product.given["weight"])
        if name is None:
            return origin
        whole = self._pending[name]
        first = (product.given["weight"].data_ptr() - whole.data_ptr()) // whole[0].nbytes
        use = self.used(name, replace(product, first=first), product.given["input"], origin.routed)
        return replace(origin, pending=True, branch=None if use is None else (use, lambda change: change))

    def _norm(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], origin: Origin) -> Origin:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x, variance, weight = given["input"], given["running_var"], given.get("weight")
        if variance is None:
            return origin
        gain = (variance + given.get("eps", 1e-5)).rsqrt() * (1 if weight is None else weight)
        gain = gain.view(1, -1, *[1] * (x.dim() - 2))
        branch = self._origin(x).branch
        name = self._norms.get(id(given["running_mean"]))
        if name is not None:
            self.used(name, None, x, origin.routed)
        if branch is None:
            return origin
        use, back = branch
        return replace(origin, branch=(use, lambda change: back(_divided(change, gain))))

    def _added(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Of two tensors that are added, one may come of the use that is watched and the other not."""
        shapes = [tensor.shape if isinstance(tensor, Tensor) else None for tensor in args]
        if len(shapes) != 2 or None in shapes or shapes[0] != shapes[1] or kwargs:
            return
        for one, other in (args[:2], args[1::-1]):
            branch = self._origin(one).branch
            if branch is not None:
                use, back = branch
                use.added = True
                if not self._origin(other).pending:
                    use.shortcut, use.back = other.clone(), back  # it may be written to
        if self.sums and len(self.uses) == self.enough and all(use.added for use in self.uses):
            raise Reached

    def _onwards(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Use, Back] | None:
        """The branch of an output that has the input's values, in another shape or order."""
        first = args[0] if args else kwargs.get("input")
        if not isinstance(first, Tensor) or (branch := self._origin(first).branch) is None:
            return None
        use, back = branch
        if func in RESHAPES:
            shape = first.shape
            return use, lambda change: back(change.reshape(shape))
        if func in PRODUCTS and isinstance(args[1], (int, float)) and args[1]:
            return use, lambda change: back(change / args[1])
        if func in SWAPS and len(args) == 3:
            return use, lambda change: back(change.transpose(*args[1:]))
        return None

    def routed(self, tree: Any) -> bool:
        """Whether a tensor in nested tuples, lists and dicts was chosen by what the network computed."""
        return any(self._origin(tensor).routed for tensor in _tensors(tree))

    def _chosen(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether the indices of a choice depend on what the network computed."""
        return any(self._origin(index).computed for index in _tensors((args[1:], kwargs)))

    def _origin(self, tensor: Tensor) -> Origin:
        return self._origins.get(tensor, UNKNOWN)

    def _name(self, weight: Tensor) -> str | None:
        """The pending weight of which this is all, or some rows."""
        place = weight.data_ptr()
        for name, (start, stop) in self._places.items():
            if start <= place < stop and weight.shape[1:] == self._pending[name].shape[1:]:
                return name
        return None


def _divided(change: Tensor, gain: Tensor) -> Tensor:
    """change / gain; where the gain is next to nothing, so is what the output can do about it."""
    least = 1e-2 * gain.abs().mean()
    return torch.where(gain.abs() > least, change / gain, torch.zeros_like(change))


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, Mapping):
        yield from _tensors(list(tree.values()))


def _unguarded(func: Any) -> Callable[..., Any]:
    """A function of torch without its question whether somebody is watching: what it calls is watched instead."""
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(func.__code__, names, func.__name__, func.__defaults__)
