"""Nodes of an ONNX graph that turn packed bytes into weights, in integer arithmetic and to the bit.

A byte holds digits: bits, whole labels where they fit, or trits. The nodes compute digit = byte // place % radix, join
the digits of a label, take its level and multiply by the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mrfquant.packing.bits import TRITS, label_bits
from mrfquant.packing.parameter import PackedParameter

if TYPE_CHECKING:
    from onnx_ir import Value
    from onnx_ir.tape import Tape


def initializer(name: str, array: np.ndarray) -> Value:
    """Return a constant, to be registered in a graph."""
    import onnx_ir

    tensor = onnx_ir.tensor(array, name=name)
    shape, kind = onnx_ir.Shape(array.shape), onnx_ir.TensorType(tensor.dtype)
    return onnx_ir.Value(name=name, shape=shape, type=kind, const_value=tensor)


def append_unpacked(tape: Tape, name: str, parameter: PackedParameter, dtype: Any) -> Value:
    """Append the nodes that compute the weights of a parameter, in a type that has its levels."""
    import onnx_ir

    def constant(role: str, value: Any, dtype: Any) -> Value:
        return tape.initializer(onnx_ir.tensor(np.asarray(value, dtype), name=f"{name}/{role}"))

    levels, shape = constant("levels", parameter.levels, dtype), constant("shape", parameter.rows, np.int64)
    if len(parameter.levels) == 1:
        weights = tape.op("Expand", [levels, shape])
    else:
        radix, places, per_label = _digits(len(parameter.levels), parameter.encoding)
        data = constant("packed", parameter.data.cpu().numpy()[:, None], np.uint8)
        wide = tape.op("Cast", [data], {"to": onnx_ir.DataType.INT32})
        shifted = tape.op("Div", [wide, constant("places", radix ** np.arange(places), np.int32)])
        digits = tape.op("Mod", [shifted, constant("radix", radix, np.int32)])
        flat = tape.op("Reshape", [digits, constant("flat", [-1], np.int64)])
        ends = [constant("first", [0], np.int64), constant("end", [parameter.numel * per_label], np.int64)]
        labels = tape.op("Slice", [flat, *ends])
        if per_label > 1:
            rows = tape.op("Reshape", [labels, constant("rows", [-1, per_label], np.int64)])
            labels = tape.op("MatMul", [rows, constant("join", radix ** np.arange(per_label), np.int32)])
        weights = tape.op("Reshape", [tape.op("Gather", [levels, labels]), shape])
    for role, operator, part in (("scale", "Mul", parameter.scale), ("zero", "Add", parameter.zero)):
        if part is not None:
            weights = tape.op(operator, [weights, _spread(tape, constant, parameter, role, part)])
    if parameter.matrix.stacked:
        straight = replace(parameter.matrix, stacked=False).rows(parameter.shape)
        weights = tape.op("Reshape", [weights, constant("stack", straight, np.int64)])
    if parameter.matrix.turned:
        *rest, outputs, inputs = range(len(parameter.shape))
        weights = tape.op("Transpose", [weights], {"perm": [*rest, inputs, outputs]})
    return weights


def _spread(
    tape: Tape, constant: Callable[[str, Any, Any], Value], parameter: PackedParameter, role: str, part: Tensor
) -> Value:
    """Append the nodes that compute scales or zero points in a shape that broadcasts with the parameter."""
    if parameter.group_size is None:
        shape = (-1, *[1] * (len(parameter.rows) - 1))
        return constant(role, part.cpu().view(shape).numpy(), np.float32)
    (rows, runs), columns = part.shape, math.prod(parameter.rows[1:])
    values = constant(role, part.cpu()[:, :, None].numpy(), np.float32)
    spread = tape.op("Expand", [values, constant(f"{role}.runs", [rows, runs, parameter.group_size], np.int64)])
    padded = tape.op("Reshape", [spread, constant(f"{role}.padded", [rows, runs * parameter.group_size], np.int64)])
    bounds = {"left": 0, "right": columns, "axis": 1}
    cut = tape.op("Slice", [padded, *(constant(f"{role}.{end}", [at], np.int64) for end, at in bounds.items())])
    return tape.op("Reshape", [cut, constant(f"{role}.shape", parameter.rows, np.int64)])


def _digits(d: int, encoding: str) -> tuple[int, int, int]:
    """Return the radix of the digits of a byte, how many it has, and how many make a label."""
    if encoding == "base3":
        return 3, TRITS, 1
    b = label_bits(d)
    return (2**b, 8 // b, 1) if 8 % b == 0 else (2, 8, b)
