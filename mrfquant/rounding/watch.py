"""Record each use of a weight in a forward pass, its inputs, and the residual branch its output is added to."""

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
RESHAPES = {torch.reshape, torch.flatten, torch.squeeze, torch.unsqueeze, functional.dropout}
RESHAPES |= {getattr(Tensor, name) for name in SAME_VALUES}
PRODUCTS = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
SWAPS = {torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes}
CHOICES = {torch.index_select, Tensor.index_select, torch.gather, Tensor.gather, Tensor.__getitem__}
CHOICES |= {torch.masked_select, Tensor.masked_select}
Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
Back = Callable[[Tensor], Tensor]  # maps a change of a later tensor to the change of the layer's output that causes it


class StopForward(Exception):
    """Ends a forward pass whose rest is not needed."""


@dataclass
class Use:
    """One use of a watched weight or norm."""

    name: str
    product: Product | None  # None for a norm
    inputs: Tensor
    routed: bool  # the network's own activations selected the inputs: another network may select others
    added: bool = False  # the output is added to another tensor
    shortcut: Tensor | None = None  # that tensor, if it does not depend on weights that are not rounded yet
    back: Back | None = None  # maps a change of the sum to a change of the layer's output


@dataclass(frozen=True)
class Origin:
    """How a tensor was computed."""

    computed: bool = False  # it depends on the weights of some layer
    pending: bool = False  # it depends on weights that are not rounded yet
    routed: bool = False  # the network's own activations selected its inputs
    units: frozenset[int] = frozenset()  # numbers of the units whose outputs it was computed from
    branch: tuple[Use, Back] | None = None  # the use that it is an affine map of, and the way back to its output


UNKNOWN = Origin()


class Watch(TorchFunctionMode):
    """Records the uses of `pending` weights, not rounded yet, and of norms that are `wanted`, in `uses`.

    Raises StopForward after `enough` uses; with `sums`, once all their outputs have been added to something.
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
        """Record the use of a pending weight or a norm; return it if its output is to be followed."""
        if name not in self.wanted:
            return None
        ends = len(self.uses) + 1 == self.enough and not self.sums
        if not ends:  # what follows may write to them
            inputs, product = inputs.clone(), product and product.copied()
        self.uses.append(Use(name, product, inputs, routed))
        if ends:
            raise StopForward
        return self.uses[-1]

    def unit_read(self, unit: int) -> None:
        """Take note that a tensor computed from the output of this unit was read."""

    def mark(self, unit: int, tensor: Tensor) -> None:
        """Mark a tensor as the output of a unit."""
        self._origins[tensor] = replace(self._origin(tensor), computed=True, units=frozenset([unit]))

    def __torch_function__(self, func: Function, _: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:  # has products within
            with self:
                return _unguarded(func)(*args, **kwargs)
        if getattr(func, "__name__", "") in ("__get__", "size", "dim"):
            return func(*args, **kwargs)
        given = [self._origin(tensor) for tensor in _tensors((args, kwargs))]
        if func in ADDITIONS:
            self._record_residual(args, kwargs)
        output = func(*args, **kwargs)
        origin = Origin(
            computed=any(of.computed for of in given),
            pending=any(of.pending for of in given),
            routed=any(of.routed for of in given),
            units=frozenset().union(*(of.units for of in given)),
        )
        if func in CHOICES and any(self._origin(index).computed for index in _tensors((args[1:], kwargs))):
            origin = replace(origin, routed=True)
        for unit in origin.units:
            self.unit_read(unit)
        if func in ARGUMENTS:
            origin = self._product(func, args, kwargs, output, origin)
        elif func is functional.batch_norm:
            origin = self._norm(args, kwargs, origin)
        else:
            origin = replace(origin, branch=self._continue_branch(func, args, kwargs))
        for tensor in _tensors(args[0] if func is Tensor.__setitem__ else output):
            self._origins[tensor] = origin
        return output

    def _product(self, func: Function, args: Args, kwargs: Kwargs, output: Tensor, origin: Origin) -> Origin:
        product = Product.of(func, args, kwargs, output)
        name = self._name(product.given["weight"])
        if "bias" in ARGUMENTS[func] or name is not None:  # a layer; other products may be of anything
            origin = replace(origin, computed=True)
        if name is None:
            return origin
        whole, columns = self._pending[name], product.form.matrix(product.given["weight"]).shape[1]
        first = (product.given["weight"].data_ptr() - whole.data_ptr()) // (whole.itemsize * columns)
        use = self.used(name, replace(product, first=first), product.given["input"], origin.routed)
        return replace(origin, pending=True, branch=None if use is None else (use, lambda change: change))

    def _norm(self, args: Args, kwargs: Kwargs, origin: Origin) -> Origin:
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
        usable = gain.abs() > 1e-2 * gain.abs().mean()  # a gain close to 0 cannot make up for a change
        return replace(origin, branch=(use, lambda change: back(torch.where(usable, change / gain, 0.0))))

    def _record_residual(self, args: Args, kwargs: Kwargs) -> None:
        """On a + b where one operand comes from a watched layer, store the other as its shortcut."""
        shapes = [tensor.shape if isinstance(tensor, Tensor) else None for tensor in args]
        if len(shapes) != 2 or None in shapes or shapes[0] != shapes[1] or kwargs:
            return
        for one, other in (args[:2], args[1::-1]):
            if (branch := self._origin(one).branch) is not None:
                use, back = branch
                use.added = True
                if not self._origin(other).pending:
                    use.shortcut, use.back = other.clone(), back  # it may be written to
        if self.sums and len(self.uses) == self.enough and all(use.added for use in self.uses):
            raise StopForward

    def _continue_branch(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Use, Back] | None:
        """Return the branch of an output that is a reshaped, transposed or scaled input."""
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
        """Return whether the network's own activations selected a tensor in nested tuples, lists and dicts."""
        return any(self._origin(tensor).routed for tensor in _tensors(tree))

    def _origin(self, tensor: Tensor) -> Origin:
        return self._origins.get(tensor, UNKNOWN)

    def _name(self, weight: Tensor) -> str | None:
        """Return the name of the pending weight of which this tensor is all, some rows, or a matrix of a stack."""
        place = weight.data_ptr()
        for name, (start, stop) in self._places.items():
            if start <= place < stop and weight.stride() == self._pending[name].stride()[-weight.dim() :]:
                return name
        return None


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, Mapping):
        yield from _tensors(list(tree.values()))


def _unguarded(func: Any) -> Callable[..., Any]:
    """Return a function of torch without its `has_torch_function` check, so that its inner calls are intercepted."""
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(func.__code__, names, func.__name__, func.__defaults__)
