"""A packed network as an ONNX file: labels are stored as bytes, nodes of the graph turn them into weights.

A byte holds some digits: 0 and 1 in the encoding bits (whole labels where a byte holds a whole number of them), trits
in base3. The nodes compute digit = byte // place % radix, join the digits of a label where it has several, take the
level of each label and multiply by the scale: integer arithmetic in standard operators, and to the bit the weights of
`PackedParameter.values`. A runtime may do so once, when it loads the file (onnxruntime does): then the file is small,
and the weights in memory are floats.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.packing.bits import TRITS, label_bits
from mrfquant.packing.parameter import PackedParameter
from mrfquant.storage.files import atomic

if TYPE_CHECKING:
    from onnx_ir import Graph, Model, Value
    from onnx_ir.tape import Tape


def export_onnx(model: nn.Module, packed: Mapping[str, PackedParameter], shape: tuple[int, ...], path: Path) -> None:
    """Write the network in evaluation mode as an ONNX file with packed weights.

    Its input `images` is float32 (batch, *shape), its output `logits`; batches may have any size.

    Args:
        model: the network, left as it is.
        packed: parameters by their names in the network, whose values they must have; the others stay float32.
        shape: of an image.
        path: of the file.
    """
    need_extra("onnx", "writing ONNX")
    import onnx_ir
    from onnx_ir.passes import common

    exported = _plain(model, shape)
    _pack(exported.graph, packed)
    common.DeduplicateInitializersPass()(exported)
    common.ClearMetadataAndDocStringPass()(exported)  # stack traces
    proto = onnx_ir.to_proto(exported)
    del proto.graph.value_info[:]  # shapes of what is computed: runtimes infer them
    with atomic(path) as file:
        file.write(proto.SerializeToString())


def _plain(model: nn.Module, shape: tuple[int, ...]) -> Model:
    """The network in ONNX with float weights, each under the name and with the values of its parameter.

    Only constants are folded: PyTorch's optimization would merge batch norm into the weights, off their levels.
    """
    from onnxscript import optimizer

    network = copy.deepcopy(model).cpu().float().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the inside of PyTorch
        program = torch.onnx.export(
            network,
            (torch.zeros(2, *shape),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None  # nothing is written, so it is returned
    exported = program.model
    optimizer.fold_constants(exported, onnx_shape_inference=True)
    optimizer.remove_unused_nodes(exported)
    return exported


def _pack(graph: Graph, packed: Mapping[str, PackedParameter]) -> None:
    """Put nodes that unpack in the place of the float weights of the parameters."""
    from onnx_ir.tape import Tape

    tape = Tape(graph)
    found = {id(parameter) for name, parameter in packed.items() if name in graph.initializers}
    for name, parameter in packed.items():
        weights = graph.initializers.pop(name, None)
        if weights is None and id(parameter) in found:
            continue  # the same weights are there under another name
        if weights is None:
            raise BadInput(f"the network has no parameter {name} to pack")
        value = weights.const_value
        if value is None or not np.array_equal(value.numpy(), parameter.values().numpy()):
            raise BadInput(f"the network's {name} differs from the packed one")
        unpacked = _unpacked(tape, name, parameter)
        weights.replace_all_uses_with(unpacked)
        unpacked.name = name
    graph.sort()


def _unpacked(tape: Tape, name: str, parameter: PackedParameter) -> Value:
    """Append the nodes that compute the weights of a parameter."""
    import onnx_ir

    def constant(role: str, value: Any, dtype: type) -> Value:
        return tape.initializer(onnx_ir.tensor(np.asarray(value, dtype), name=f"{name}.{role}"))

    levels, shape = constant("levels", parameter.levels, np.float32), constant("shape", parameter.shape, np.int64)
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
    return weights


def _spread(
    tape: Tape, constant: Callable[[str, Any, type], Value], parameter: PackedParameter, role: str, part: Tensor
) -> Value:
    """Append the nodes that compute scales or zero points in a shape that broadcasts with the parameter."""
    if parameter.group_size is None:
        shape = (-1, *[1] * (len(parameter.shape) - 1))
        return constant(role, part.cpu().view(shape).numpy(), np.float32)
    (rows, runs), columns = part.shape, math.prod(parameter.shape[1:])
    values = constant(role, part.cpu()[:, :, None].numpy(), np.float32)
    spread = tape.op("Expand", [values, constant(f"{role}.runs", [rows, runs, parameter.group_size], np.int64)])
    padded = tape.op("Reshape", [spread, constant(f"{role}.padded", [rows, runs * parameter.group_size], np.int64)])
    bounds = {"left": 0, "right": columns, "axis": 1}
    cut = tape.op("Slice", [padded, *(constant(f"{role}.{end}", [at], np.int64) for end, at in bounds.items())])
    return tape.op("Reshape", [cut, constant(f"{role}.shape", parameter.shape, np.int64)])


def _digits(d: int, encoding: str) -> tuple[int, int, int]:
    """The radix of the digits of a byte, how many it has, and how many make a label."""
    if encoding == "base3":
        return 3, TRITS, 1
    b = label_bits(d)
    return (2**b, 8 // b, 1) if 8 % b == 0 else (2, 8, b)
