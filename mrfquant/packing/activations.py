"""8-bit activations: an exported network with the integer operators that ONNX Runtime has kernels for.

Convolutions and linear layers of batches get 8-bit inputs whose ranges are percentiles over training data, their
weights stay the levels they are on, in int8 with a scale for each output channel, and batch norm goes into that scale.
ONNX Runtime's own quantization finds the ranges and places the operators. Linear layers on sequences are multiplied by
2-bit weights (`MatMulNBits`), the fastest there is for a single token.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mrfquant.packing.integers import IntegerWeight, multiply_by_few_bits
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.unpack_nodes import initializer

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Graph, Model, Node, Value

PERCENTILE = 99.99  # percentage of a tensor's calibration values inside its range; the rest is clipped
LAYERS = ("Conv", "Gemm")
# What passes 8-bit values on or joins them, so that neighbouring layers need not go through float.
BETWEEN = ("Add", "MaxPool", "Relu", "Clip", "Pad", "Slice", "Reshape", "Flatten", "Transpose", "Squeeze", "Concat")


def in_eight_bits(
    model: Model, packed: Mapping[str, PackedParameter], batches: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Model, dict[str, PackedParameter]]:
    """Return the network with 8-bit activations, whose ranges `batches` give, and its packed initializers."""
    import onnx_ir
    from onnxscript import optimizer

    weights = _integer_weights(model.graph, packed)
    if weights:
        for node in list(model.graph):
            _fold_batch_norm(model.graph, node, weights)
        optimizer.remove_unused_nodes(model)
        for name, weight in weights.items():
            weight.settle()
            model.graph.initializers[name].const_value = onnx_ir.tensor(weight.values, name=name)
        model = onnx_ir.from_proto(_quantize(onnx_ir.to_proto(model), weights, batches))
        for index in range(len(model.graph.outputs)):
            _leave_float(model.graph, index)
        for name in weights:
            _derive_bias_scale(model.graph, f"{name}_quantized")
        optimizer.remove_unused_nodes(model)
    few = multiply_by_few_bits(model, packed)
    left = model.graph.initializers.keys() - weights.keys() - few
    integers = {f"{name}_quantized": weight.packed() for name, weight in weights.items()}
    return model, integers | {name: parameter for name, parameter in packed.items() if name in left}


def _integer_weights(graph: Graph, packed: Mapping[str, PackedParameter]) -> dict[str, IntegerWeight]:
    """Return the weights that an integer kernel can take: those of layers alone, and exact in int8."""
    found = {}
    for name, parameter in packed.items():
        value = graph.initializers.get(name)
        if value is None or not value.uses() or not all(_is_layer(node, index) for node, index in value.uses()):
            continue
        if (weight := IntegerWeight.of(parameter)) is not None:
            found[name] = weight
    return found


def _is_layer(node: Node, index: int) -> bool:
    """Return whether a node multiplies by its input `index`, whose first dimension is that of the outputs."""
    transposed = node.op_type != "Gemm" or node.attributes.get_int("transB", 0) == 1
    return node.op_type in LAYERS and index == 1 and transposed


def _fold_batch_norm(graph: Graph, node: Node, weights: Mapping[str, IntegerWeight]) -> None:
    """Turn y = a (W x + b - mean) + beta into (a W) x + (a (b - mean) + beta): a scales W's rows."""
    layer = _producer(node.inputs[0]) if node.op_type == "BatchNormalization" else None
    weight = None if layer is None or layer.op_type not in LAYERS else layer.inputs[1]
    if layer is None or weight is None or weight.name not in weights:
        return
    constants = [_constant(value) for value in (*node.inputs[1:5], *layer.inputs[2:])]
    if any(value is None for value in constants) or len(layer.outputs[0].uses()) > 1 or len(weight.uses()) > 1:
        return
    gamma, beta, mean, variance, *biases = (np.asarray(value) for value in constants)
    bias = biases[0] if biases else 0.0
    factor = gamma / np.sqrt(variance + np.float32(node.attributes.get_float("epsilon", 1e-5)))
    weights[str(weight.name)].fold(factor)
    value = initializer(f"{weight.name}.bias", (factor * (bias - mean) + beta).astype(np.float32))
    graph.register_initializer(value)
    layer.resize_inputs(3)
    layer.replace_input_with(2, value)
    node.outputs[0].replace_all_uses_with(layer.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    layer.outputs[0].name = node.outputs[0].name


def _constant(value: Value | None) -> np.ndarray | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _producer(value: Value | None) -> Node | None:
    return None if value is None else value.producer()


def _quantize(
    proto: ModelProto, weights: Mapping[str, IntegerWeight], batches: Sequence[Mapping[str, np.ndarray]]
) -> ModelProto:
    """Run ONNX Runtime's quantization with the given integers and scales of the weights."""
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder, quietly():
        path = Path(folder) / "quantized.onnx"
        quantization.quantize_static(
            proto,
            path,
            calibration_reader(batches),
            op_types_to_quantize=[*LAYERS, *BETWEEN],
            nodes_to_exclude=list(_left_float(proto, weights)),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            calibrate_method=quantization.CalibrationMethod.Percentile,
            extra_options={
                "CalibPercentile": PERCENTILE,
                "CalibStridedMinMax": 1,  # a batch at a time, in whatever way the ranges are found
                "QDQDisableWeightAdjustForInt32Bias": True,
                "TensorQuantOverrides": {
                    name: [
                        {"axis": 0, "quant_type": quantization.QuantType.QInt8, "scale": scale, "zero_point": 0}
                        for scale in weight.scale
                    ]
                    for name, weight in weights.items()
                },
            },
        )
        return onnx.load(path)


def _left_float(proto: ModelProto, weights: Mapping[str, IntegerWeight]) -> Iterator[str]:
    """Return nodes that are not quantized: layers with other weights, and sums with constants."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        other_weights = node.op_type in LAYERS and node.input[1] not in weights
        if other_weights or (node.op_type == "Add" and not constants.isdisjoint(node.input)):
            yield node.name


def calibration_reader(batches: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Return the batches as ONNX Runtime's quantization asks for them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        left = iter(batches)

        def __len__(self) -> int:
            return len(batches)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.left = iter(batches[start_index:end_index])

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self.left, None)

    return Reader()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence what the library prints and advises."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.root.setLevel(level)


def _leave_float(graph: Graph, index: int) -> None:
    """Give an output as it was before it was brought to 8 bits, if it was."""
    output = graph.outputs[index]
    dequantize = output.producer()
    quantize = None if dequantize is None else _producer(dequantize.inputs[0])
    before = None if quantize is None or quantize.op_type != "QuantizeLinear" else quantize.inputs[0]
    if before is not None and before.producer() is not None:
        output.name, before.name = f"{output.name}/8 bits", output.name
        output.replace_all_uses_with(before, replace_graph_outputs=True)


def _derive_bias_scale(graph: Graph, name: str) -> None:
    """Set the scale of a layer's bias (the input's times the weight's) and its zero point, 0."""
    from onnx_ir.tape import Tape

    for dequantize, _ in graph.initializers[name].uses():
        for layer, _ in dequantize.outputs[0].uses():
            values, bias = (_producer(value) for value in (layer.inputs[0], (*layer.inputs, None)[2]))
            if values is not None and bias is not None:
                scale = Tape(graph).op("Mul", [values.inputs[1], dequantize.inputs[1]])
                bias.replace_input_with(1, scale)
                bias.resize_inputs(2)
    graph.sort()
