"""Weights for integer kernels: int8 with scales, and ONNX Runtime's MatMulNBits for linear layers on sequences.

The time of a product with one vector is that of reading the weights. There a weight is (code - 2^(bits - 1)) times the
scale of its block of neighbouring inputs; codes are made of the packed labels when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mrfquant.labelling.matrices import PLAIN
from mrfquant.packing.bits import Encoding
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.unpack_nodes import append_unpacked

if TYPE_CHECKING:
    from onnx_ir import Graph, Model, Node, Value
    from onnx_ir.tape import Tape


LARGEST = 64  # where AVX2 adds two products with 8-bit activations in 16 bits, larger weights would overflow


def integer_levels(levels: tuple[float, ...], largest: int = LARGEST) -> tuple[np.ndarray, float] | None:
    """Return levels as integers times a step, at most `largest`; None where they are no such multiples."""
    q = np.asarray(levels)
    top = float(np.abs(q).max())
    for n in range(1, largest + 1):
        scaled = q * (n / top) if top else q
        if np.abs(scaled - scaled.round()).max() < 1e-6:
            return scaled.round().astype(np.int8), top / n if top else 1.0
    return None


@dataclass
class IntegerWeight:
    """Integers int8 (rows, ...) times a scale float32 (rows,), which `fold` may make negative until `settle`."""

    integers: np.ndarray
    scale: np.ndarray
    levels: tuple[int, ...]
    encoding: Encoding

    @classmethod
    def of(cls, parameter: PackedParameter) -> IntegerWeight | None:
        """None where levels are no multiples of a step, scales differ within a row, or there is more than scales."""
        found = integer_levels(parameter.levels)
        plain = parameter.group_size is None and parameter.zero is None and parameter.matrix == PLAIN
        if found is None or not plain or len(parameter.shape) < 2:
            return None
        levels, step = found
        scale = np.ones(1, np.float32) if parameter.scale is None else parameter.scale.cpu().numpy()
        rows = np.broadcast_to(np.float32(step) * scale, parameter.shape[:1])
        return cls(levels[parameter.labels().numpy()], rows.copy(), tuple(levels.tolist()), parameter.encoding)

    @property
    def values(self) -> np.ndarray:
        """The weights in float32."""
        return self.integers * self._column(self.scale)

    def fold(self, factor: np.ndarray) -> None:
        """Multiply each row by a number."""
        self.scale = self.scale * factor

    def settle(self) -> None:
        """Let the integers have the signs: scales of quantized tensors are positive."""
        sign = np.sign(self.scale).astype(np.int8)
        if (sign < 1).any():
            self.integers = self.integers * self._column(sign)
            self.levels = tuple(sorted({int(s) * q for q in self.levels for s in {1, *sign.tolist()}}))
            self.scale = np.where(sign == 0, 1, np.abs(self.scale)).astype(np.float32)

    def packed(self) -> PackedParameter:
        """Return the integers as a parameter on levels."""
        encoding: Encoding = "base3" if self.encoding == "base3" and len(self.levels) == 3 else "bits"
        return PackedParameter.of(torch.from_numpy(self.integers).float(), tuple(map(float, self.levels)), encoding)

    def _column(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *[1] * (self.integers.ndim - 1))


DOMAIN = "com.microsoft"
EIGHT_BITS = 4  # the kernel's accuracy level: it may bring activations to 8 bits
BLOCKS = (128, 64, 32, 16)  # inputs that share a scale: what the kernel takes


@dataclass(frozen=True)
class Codes:
    """A weight (outputs, inputs) as MatMulNBits has it: codes as levels, bits of a code, inputs of a block, scales."""

    parameter: PackedParameter
    bits: int
    block: int
    scale: np.ndarray

    @classmethod
    def of(cls, parameter: PackedParameter) -> Codes | None:
        """None where levels or sizes do not fit."""
        found = integer_levels(parameter.levels, largest=8)
        if found is None or len(parameter.shape) != 2 or parameter.zero is not None or parameter.matrix != PLAIN:
            return None
        levels, step = found
        inputs, run = parameter.shape[1], parameter.group_size
        bits = next((b for b in (2, 4) if -(2 ** (b - 1)) <= levels.min() and levels.max() < 2 ** (b - 1)), None)
        block = next((size for size in BLOCKS if inputs % size == 0 and (run or size) % size == 0), None)
        if bits is None or block is None:
            return None
        scale = np.ones(1, np.float32) if parameter.scale is None else parameter.scale.cpu().numpy()
        blocks = scale[:, None] if run is None else scale.repeat(run // block, 1)[:, : inputs // block]
        codes = tuple((levels.astype(float) + 2 ** (bits - 1)).tolist())
        plain = replace(parameter, levels=codes, scale=None, group_size=None)
        return cls(plain, bits, block, np.float32(step) * blocks)


def multiply_by_few_bits(model: Model, packed: Mapping[str, PackedParameter]) -> set[str]:
    """Replace the products of sequences with packed weights where they fit; the names of these weights."""
    from onnx_ir.tape import Tape

    graph, tape, replaced = model.graph, Tape(model.graph), set()
    for name, parameter in packed.items():
        products = _products(graph, name)
        codes = Codes.of(parameter) if products else None
        if codes is None:
            continue
        weight = _append_codes(tape, name, codes)
        for product in products:
            attributes = {"K": parameter.shape[1], "N": parameter.shape[0], "bits": codes.bits}
            attributes |= {"block_size": codes.block, "accuracy_level": EIGHT_BITS}
            made = tape.op("MatMulNBits", [product.inputs[0], *weight], attributes, domain=DOMAIN)
            made.shape, made.type = product.outputs[0].shape, product.outputs[0].type
            product.outputs[0].replace_all_uses_with(made, replace_graph_outputs=True)
            graph.remove(product, safe=True)
            made.name = product.outputs[0].name
        for transpose, _ in graph.initializers[name].uses():
            graph.remove(transpose, safe=True)
        del graph.initializers[name]
        replaced.add(name)
    if replaced:
        model.graph.opset_imports[DOMAIN] = 1
        graph.sort()
    return replaced


def _products(graph: Graph, name: str) -> list[Node]:
    """Return the nodes x Wᵀ, where a weight W has no other use."""
    value = graph.initializers.get(name)
    transposes = [] if value is None else [node for node, _ in value.uses()]
    uses = [use for node in transposes for use in node.outputs[0].uses()]
    plain = all(node.op_type == "Transpose" for node in transposes)
    plain = plain and all(node.op_type == "MatMul" and index == 1 for node, index in uses)
    return [node for node, _ in uses] if plain else []


def _append_codes(tape: Tape, name: str, codes: Codes) -> list[Value]:
    """Append the nodes that join codes to bytes (outputs, blocks, bytes), and give every block its scale."""
    import onnx_ir

    def constant(role: str, value: object, dtype: type) -> Value:
        return tape.initializer(onnx_ir.tensor(np.asarray(value, dtype), name=f"{name}/{role}"))

    (outputs, inputs), together = codes.parameter.shape, 8 // codes.bits
    blocks = inputs // codes.block
    each = append_unpacked(tape, name, codes.parameter, np.int32)
    rows = tape.op("Reshape", [each, constant("together", [-1, together], np.int64)])
    joined = tape.op("MatMul", [rows, constant("places of codes", 2 ** (codes.bits * np.arange(together)), np.int32)])
    data = tape.op("Cast", [joined], {"to": onnx_ir.DataType.UINT8})
    form = constant("blocks", [outputs, blocks, codes.block // together], np.int64)
    scale = tape.op(
        "Expand", [constant("scales", codes.scale, np.float32), constant("many", [outputs, blocks], np.int64)]
    )
    return [tape.op("Reshape", [data, form]), scale]
