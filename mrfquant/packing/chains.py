"""A parameter whose labels are chains through a trellis, as a stream of bits.

A chain of T weights has the `memory` bits of its first state and then `bits` for each weight, most significant first:
memory + bits (T - 1) in all, so that the state of weight t is the window of `memory` bits from bit t * bits on. Chains
follow each other without a gap; bit k of the stream is bit 7 - k mod 8 of byte k // 8, and the rest is 0.

Chains go through a weight matrix (rows, n) input by input, along the rows: there is one for each input, or one for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.kernels import dispatch
from mrfquant.labelling import Trellis
from mrfquant.labelling.mixing import Mixing
from mrfquant.labelling.trellis import chain_length
from mrfquant.packing.bits import deflated
from mrfquant.packing.parameter import PackedParameter

COLUMNS = "columns"  # the part of a file with the scales of inputs
NOT_MIXED = torch.zeros(0, dtype=torch.int8)


@dataclass(frozen=True)
class PackedChains:
    """Chains of a parameter.

    Attributes:
        data: uint8 (bytes,), the stream. shape: of the parameter. trellis: whose paths they are.
        chain: weights of a chain.
        scale: float16 (rows,), of each slice along the first dimension; float32 where it was trained.
        columns: int8 (n,) or (1,), of the basis that the labels belong to, see `Mixing`; (0,) without mixing.
    """

    data: Tensor
    shape: tuple[int, ...]
    trellis: Trellis
    chain: int
    scale: Tensor
    columns: Tensor

    encoding = "trellis"

    @classmethod
    def of(
        cls, states: Tensor, shape: tuple[int, ...], trellis: Trellis, chain: int, scale: Tensor, columns: Tensor
    ) -> PackedChains:
        """Pack states (n, rows)."""
        chains = states.reshape(-1, chain).cpu()
        if not trellis.follows(chains.T).all():
            raise BadInput(
                f"the labels are no paths through a trellis of {trellis.bits} bits and memory {trellis.memory}"
            )
        stream = np.concatenate([_digits(chains[:, :1], trellis.memory), _digits(chains[:, 1:], trellis.bits)], 1)
        data = torch.from_numpy(np.packbits(stream))
        return cls(data, tuple(shape), trellis, chain, scale.half().cpu(), columns.cpu())

    @classmethod
    def of_weights(cls, weights: Tensor, trellis: Trellis, scale: Tensor) -> PackedChains:
        """Pack weights of a trained network, which are levels times scales (rows,) to the bit, along their chains."""
        rows, levels = weights.detach().cpu().float().flatten(1), torch.tensor(trellis.values)
        between = (levels[1:] + levels[:-1]) / 2
        states = trellis.state_of_label[torch.bucketize(rows / scale[:, None], between)].T
        packed = cls.of(states, weights.shape, trellis, chain_length(weights.shape), scale, NOT_MIXED)
        return replace(packed, scale=scale)

    def __post_init__(self) -> None:
        rows, n = self.shape[0], math.prod(self.shape[1:])
        if self.chain < 1 or self.chain not in (rows, rows * n):
            raise BadInput(f"chains of {self.chain} weights, expected {rows:,} (a row of each input) or {rows * n:,}")
        if self.data.dtype != torch.uint8 or self.data.shape != (size := -(-self.stream_bits // 8),):
            given = f"{tuple(self.data.shape)} {self.data.dtype}"
            raise BadInput(
                f"chains of {self.chain:,} among {self.numel:,} weights take {size} bytes, given are {given}"
            )
        for part, kinds, lengths in (
            (self.scale, (torch.float16, torch.float32), [rows]),
            (self.columns, (torch.int8,), [n, 1, 0]),
        ):
            if part.dtype not in kinds or part.dim() != 1 or len(part) not in lengths:
                told = f"scales of shape {tuple(part.shape)} and {part.dtype}"
                expected = " or ".join(map(str, lengths))
                raise BadInput(f"{told}, expected {expected} of {' or '.join(map(str, kinds))}")

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels, increasing."""
        return self.trellis.values

    @property
    def numel(self) -> int:
        """Weights."""
        return math.prod(self.shape)

    @property
    def stream_bits(self) -> int:
        """Bits of all chains."""
        return stream_bits(self.numel, self.chain, self.trellis)

    @property
    def nbytes(self) -> int:
        """Bytes of labels and scales."""
        return self.data.numel() + self.scale.nbytes + self.columns.numel()

    @property
    def description(self) -> str:
        """The trellis, for people."""
        return f"trellis of {self.trellis.bits} bits, memory {self.trellis.memory}"

    @property
    def block(self) -> tuple[Any, ...]:
        """Bits and memory, encoding and chain: parameters that share them are listed together in a file."""
        return (self.trellis.bits, self.trellis.memory), self.encoding, self.chain

    @property
    def parts(self) -> dict[str, Tensor]:
        """The tensors that a file has beside the labels."""
        return {"scale": self.scale, COLUMNS: self.columns}

    def record(self) -> dict[str, Any]:
        """Return the same as plain values and tensors, for a checkpoint or a journal."""
        trellis = [self.trellis.bits, self.trellis.memory]
        return {"trellis": trellis, "chain": self.chain, "shape": list(self.shape), "data": self.data, **self.parts}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> PackedChains:
        """Return the chains of a record."""
        shape, trellis = tuple(record["shape"]), Trellis(*record["trellis"])
        return cls(record["data"], shape, trellis, record["chain"], record["scale"], record[COLUMNS])

    def stored(self, compressed: bool) -> Tensor:
        """Return the labels as files have them: the bytes, or these deflated."""
        return deflated(self.data) if compressed else self.data

    def states(self) -> Tensor:
        """Return the states: int64 (n, rows)."""
        chains = self.numel // self.chain
        stream = np.unpackbits(self.data.numpy(), count=self.stream_bits).reshape(chains, -1)
        states = np.zeros((chains, self.chain), np.int64)
        for i in range(self.trellis.memory):
            states = 2 * states + stream[:, i :: self.trellis.bits][:, : self.chain]
        return torch.from_numpy(states.reshape(-1, self.shape[0]))

    def labels(self) -> Tensor:
        """Return the label of every weight, in the parameter's shape: int32."""
        return self.trellis.label_of_state[self.states()].T.reshape(self.shape).int()

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weights, to the bit as they were."""
        table, scale = self.trellis.table, self.scale.float()
        if (loops := dispatch.loops("viterbi")) is None:
            levels = table[self.states()] * scale
        else:
            levels = torch.empty(self.numel // self.shape[0], self.shape[0])
            padded = torch.nn.functional.pad(self.data, (0, 2))
            arrays = [part.numpy() for part in (padded, table, scale, levels)]
            loops.decode(*arrays, self.trellis.bits, self.trellis.memory, self.chain)
        rows = Mixing(self.columns).unmixed(levels) if len(self.columns) else levels.T
        return rows.reshape(self.shape).to(dtype)


def stream_bits(count: int, chain: int, trellis: Trellis) -> int:
    """Return the bits that `count` weights in chains of a length take."""
    return count // max(1, chain) * (trellis.memory - trellis.bits) + trellis.bits * count


def _digits(numbers: Tensor, bits: int) -> np.ndarray:
    """Return the lowest bits of numbers (chains, T), most significant first: uint8 (chains, T * bits)."""
    shifts = np.arange(bits - 1, -1, -1)
    return (numbers.numpy()[:, :, None] >> shifts & 1).astype(np.uint8).reshape(len(numbers), -1)


def on_levels(name: str, packed: PackedParameter | PackedChains, use: str) -> PackedParameter:
    """Return a packed parameter on levels; BadInput for chains, which cannot be used so."""
    if isinstance(packed, PackedChains):
        raise BadInput(f"{name} is stored as chains of a trellis, which cannot {use}: load the file with float weights")
    return packed


def parsed_chains(
    name: str,
    levels: Any,
    shape: Any,
    chain: list[Any],
    data: Callable[[int], Tensor],
    parts: Mapping[str, Tensor | None],
) -> PackedChains:
    """Return the chains that a file announces as `block` says; `data` gives so many bytes of labels."""
    if len(chain) != 1 or any(type(number) is not int for number in (*levels, *chain)) or len(levels) != 2:
        raise BadInput(f"{name} has the invalid trellis {str([levels, chain])[:60]}, expected bits, memory and a chain")
    scale, columns = parts["scale"], parts[COLUMNS]
    if scale is None or columns is None or len(shape) < 2:
        raise BadInput(f"{name} is stored as chains, without rows or their scales")
    if not scale.isfinite().all():
        raise BadInput(f"the scale of {name} is not finite")
    try:
        trellis = Trellis(*levels)
        size = -(-stream_bits(math.prod(shape), chain[0], trellis) // 8)
        return PackedChains(data(size), tuple(shape), trellis, chain[0], scale, columns)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
