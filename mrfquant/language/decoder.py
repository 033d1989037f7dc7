"""A decoder of transformers, computed one block at a time: only one block has its weights in memory."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.language.checkpoint import Checkpoint
from mrfquant.language.linear_layers import Part, as_linear
from mrfquant.rounding.watch import StopForward

Read = Callable[[], Tensor]


class Decoder:
    """A causal language model whose blocks are a ModuleList that is called in order."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = checkpoint.skeleton()
        stored = dict(checkpoint.tensors_for(self.model))
        parts = as_linear(self.model)
        gone = {name for name, _ in parts.values()}
        self.tensors = {name: read for name, read in stored.items() if name not in gone}
        self.tensors |= {name: _part(stored[whole], part) for name, (whole, part) in parts.items()}
        self.prefix, self.blocks = decoder_blocks(self.model, str(checkpoint.path))
        outside = {name: read for name, read in self.tensors.items() if not name.startswith(f"{self.prefix}.")}
        fill(self.model, outside)
        self.model.tie_weights()
        self.shapes = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        self._arguments: list[dict[str, Any]] = []
        self._tuples = False

    def name_of(self, index: int) -> str:
        """Return the name of a block, which begins the names of its parameters."""
        return f"{self.prefix}.{index}"

    def index_of(self, parameter: str) -> int | None:
        """Return the number of the block that a parameter belongs to, if it does."""
        start, _, rest = parameter.partition(f"{self.prefix}.")
        return int(rest.split(".")[0]) if not start and rest else None

    def block(self, index: int) -> nn.Module:
        """Return a copy of a block with its weights."""
        block = copy.deepcopy(self.blocks[index])
        start = f"{self.name_of(index)}."
        fill(block, {name[len(start) :]: read for name, read in self.tensors.items() if name.startswith(start)})
        return block

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """Return what the first block gets for tokens (windows, length): (windows, length, width)."""
        self._arguments = self._record(tokens[:1])
        if len(tokens) > 1 and not _alike(self._arguments, self._record(tokens[1:2])):
            raise BadInput(f"the blocks of {type(self.model).__name__} get more of each text than hidden states")
        return torch.cat([self._first_input(window[None]) for window in tokens])

    def call(self, block: nn.Module, index: int, hidden: Tensor) -> Tensor:
        """Compute a block, on hidden states (1, length, width)."""
        output = block(hidden, **self._arguments[index])
        return output[0] if isinstance(output, tuple) else output

    @torch.no_grad()
    def logits(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Return the logits (1, length, vocabulary) for what the last block returned."""

        def last(number: int, given: Tensor, **_: Any) -> Tensor:
            return hidden if number == 0 else given

        with self._replaced(last):
            return self.model(tokens, use_cache=False).logits

    def _record(self, tokens: Tensor) -> list[dict[str, Any]]:
        """Return what each block is given beside hidden states."""
        found: list[dict[str, Any]] = []

        def record(number: int, given: Tensor, **kwargs: Any) -> Tensor:
            found.append(kwargs)
            if number == len(self.blocks) - 1:
                raise StopForward
            return given

        for self._tuples in (False, True):
            found.clear()
            try:
                with self._replaced(record):
                    self.model(tokens, use_cache=False)
            except StopForward:
                return found
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
                if self._tuples:
                    raise
        raise BadInput(f"{type(self.model).__name__} does not call its {len(self.blocks)} blocks in their order")

    def _first_input(self, window: Tensor) -> Tensor:
        found: list[Tensor] = []

        def stop(_: int, given: Tensor, **__: Any) -> Tensor:
            found.append(given)
            raise StopForward

        try:
            with self._replaced(stop):
                self.model(window, use_cache=False)
        except StopForward:
            pass
        return found[0]

    @contextmanager
    def _replaced(self, forward: Callable[..., Tensor]) -> Iterator[None]:
        """Let blocks compute something else: forward(number, hidden states, everything else by name)."""
        for number, block in enumerate(self.blocks):
            block.forward = self._replacement(number, list(inspect.signature(block.forward).parameters), forward)
        try:
            yield
        finally:
            for block in self.blocks:
                del block.forward

    def _replacement(self, number: int, names: list[str], forward: Callable[..., Tensor]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False)) | kwargs
            output = forward(number, given.pop(names[0]), **given)
            return (output,) if self._tuples else output

        return call


def decoder_blocks(model: nn.Module, what: str) -> tuple[str, nn.ModuleList]:
    """Return the ModuleList with the most parameters, and its name."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = {n: m for n, m in lists.items() if not any(n.startswith(f"{other}.") for other in lists)}
    if not outer:
        raise BadInput(f"{what} has no list of blocks: only decoders whose blocks are a ModuleList can be rounded")
    name = max(outer, key=lambda n: sum(p.numel() for p in outer[n].parameters()))
    return name, outer[name]


def fill(module: nn.Module, tensors: Mapping[str, Read]) -> None:
    """Give parameters their values."""
    for name, read in tensors.items():
        owner, _, own = name.rpartition(".")
        parent, tensor = module.get_submodule(owner), read()
        expected = getattr(parent, own).shape
        if tensor.shape != expected:
            raise BadInput(f"{name} has the shape {tuple(tensor.shape)}, its configuration says {tuple(expected)}")
        parent._parameters[own] = nn.Parameter(tensor, requires_grad=False)


def _part(read: Read, part: Part) -> Read:
    return lambda: part(read())


def _alike(one: Any, other: Any) -> bool:
    """Return whether nested arguments are equal."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return type(one) is type(other)
