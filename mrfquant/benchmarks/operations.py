"""Counting what a piece of code asks of torch: operator calls, new memory, traffic, and waits for the device."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OVERWRITE = ("zero_", "fill_", "copy_")  # these do not read what they write to
SYNCS = ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero")


class Operations(TorchDispatchMode):
    """Count, within the block, what torch's operators do, views left out; `mrfquant.kernels` are no operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.allocated = self.moved = self.syncs = 0

    @property
    def total(self) -> int:
        """All calls."""
        return self.calls.total()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        result = function(*args, **(kwargs or {}))
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        library, _, name = function._schema.name.partition("::")
        known = {t.untyped_storage().data_ptr() for t in inputs}
        fresh = [t for t in outputs if t.untyped_storage().data_ptr() not in known]
        written = _written(function._schema, args, kwargs or {})
        unread = written if name in OVERWRITE or function._overloadname.endswith("out") else []
        if library == "profiler" or (outputs and not fresh and not written):
            return result  # a mark, or a view
        self.calls[name] += 1
        self.syncs += name in SYNCS or (name == "_to_copy" and _crosses(inputs, outputs))
        self.allocated += sum(t.nbytes for t in fresh)
        self.moved += sum(t.nbytes for t in [*inputs, *written, *fresh]) - sum(t.nbytes for t in unread)
        return result


def _written(schema: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    """Return the tensors among the arguments that the operator writes to."""
    given = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
    places = [given.get(a.name) for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    return [t for t in tree_leaves(places) if isinstance(t, Tensor)]


def _crosses(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Return whether something came to the host from another device."""
    return any(t.device.type != "cpu" for t in inputs) and any(t.device == torch.device("cpu") for t in outputs)
