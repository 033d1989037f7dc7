"""A packed network as an ONNX file: its bytes are the initializers, nodes of the graph turn them into weights.

A runtime may do so once, when it loads the file (onnxruntime does): then the file is small, and the weights in memory
are floats, or the 8-bit integers that `mrfquant.packing.activations` computes with.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mrfquant.config.extras import need_extra
from mrfquant.data import Dataset
from mrfquant.errors import BadInput
from mrfquant.packing.activations import in_eight_bits
from mrfquant.packing.chains import on_levels
from mrfquant.packing.file import Packed, PackedNetwork, packed_network
from mrfquant.packing.origin import arguments_of, dataset_of, training_batches
from mrfquant.packing.parameter import PackedParameter, tied_names, under_all_names
from mrfquant.packing.runtime import RuntimeNetwork, check_same
from mrfquant.packing.unpack_nodes import append_unpacked, initializer
from mrfquant.storage.files import atomic

if TYPE_CHECKING:
    from onnx_ir import Graph, Model, Node

CHECKED = 64  # examples of the test set that ONNX Runtime and PyTorch are compared on
STEPS = 0.2  # tolerated difference with 8-bit activations, as a fraction of the largest output


@dataclass(frozen=True)
class Exported:
    """The bytes of an ONNX file, and the parameters that its layers multiply by in float."""

    data: bytes
    floats: list[str]


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    examples: Sequence[Any] | None = None,
    *,
    packed: PackedNetwork | None = None,
    activations: Literal["float", "int8"] = "float",
    dataset: Dataset | None = None,
    dynamic_shapes: Any = None,
) -> Exported:
    """Write a network as ONNX with packed weights, once ONNX Runtime has computed from it what it should.

    Args:
        model: the network, as `mrfquant.load` gives it, or any other whose weights are those of `packed`.
        path: of the file.
        examples: batches of inputs, each a tensor, a tuple or a dict; some of the data set's training data by default.
        packed: the network's packed form; what it was loaded from by default.
        activations: 'int8' computes with 8-bit activations, whose ranges come from the examples.
        dataset: what else it is checked with; the one that the packed form names where there are no examples.
        dynamic_shapes: see `to_onnx`.
    """
    packed = packed_network(model) if packed is None else packed
    if examples is None:
        dataset = dataset_of(packed, path) if dataset is None else dataset
        batches = training_batches(dataset)
    else:
        batches = [arguments_of(batch) for batch in examples]
    if not batches:
        raise BadInput("no examples of inputs to write ONNX with: give a batch at least")
    (inputs, keywords), calibration = batches[0], batches if activations == "int8" else None
    names = ["images"] if dataset is not None and dataset.unit == "images" else None
    about = {"input_info": json.dumps(packed.input_info), "origin": json.dumps(packed.origin)}
    exported = to_onnx(model, packed.parameters, inputs, keywords, names, calibration, dynamic_shapes, about)
    found, same = RuntimeNetwork(exported.data), batches[0]
    if dataset is not None:
        same = arguments_of(next(iter(dataset.ordered("test", CHECKED)))[0])
    if activations == "int8":
        check_same(found, RuntimeNetwork(exported.data, optimized=False), *same, within=STEPS)
    else:
        check_same(found, model, *same)
    with atomic(path) as file:
        file.write(exported.data)
    return exported


def to_onnx(
    model: nn.Module,
    packed: Mapping[str, Packed],
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    calibration: Iterable[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
    dynamic_shapes: Any = None,
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Return the network in evaluation mode as an ONNX file with packed weights.

    Args:
        model: the network, left as it is.
        packed: parameters by their names in the network, whose values they must have; the others stay float32.
        inputs: an example of its positional arguments.
        keywords: an example of others, if it takes any.
        names: of the inputs in the file; those of the arguments of `forward` by default.
        calibration: such inputs and keywords from training data; given, activations are brought to 8 bits.
        dynamic_shapes: which dimensions may vary, as in torch.export; by default the first one of every input, which
            is that of the batch and the same for all, and the second one of integers, which is that of tokens.
        metadata: what else the file tells, by key.
    """
    need_extra("onnx", "writing ONNX")
    import onnx_ir
    from onnx_ir.passes import common

    named = under_all_names(tied_names(model), packed)
    levels = {name: on_levels(name, p, "be written as ONNX") for name, p in named.items()}
    exported = _plain(_in_float(model, levels), tuple(inputs), dict(keywords or {}), names, dynamic_shapes)
    if calibration is not None:
        arguments = [str(value.name) for value in exported.graph.inputs]
        batches = [
            dict(zip(arguments, map(_array, (*some, *others.values())), strict=True)) for some, others in calibration
        ]
        exported, levels = in_eight_bits(exported, _present(exported.graph, levels), batches)
    matrices = [name for name, p in model.named_parameters() if p.dim() > 1]
    floats = [name for name in matrices if name in exported.graph.initializers]
    _pack(exported.graph, levels)
    common.DeduplicateInitializersPass()(exported)
    common.ClearMetadataAndDocStringPass()(exported)  # stack traces
    _shorten_names(exported.graph, {name for name, _ in model.named_parameters()})
    proto = onnx_ir.to_proto(exported)
    del proto.graph.value_info[:]  # shapes of what is computed: runtimes infer them
    for key, value in (metadata or {}).items():
        proto.metadata_props.add(key=key, value=value)
    return Exported(proto.SerializeToString(), floats)


def _in_float(model: nn.Module, packed: Mapping[str, PackedParameter]) -> nn.Module:
    """Copy the network in float32 and evaluation mode; packed weights of half precision keep their values."""
    network = copy.deepcopy(model).cpu().eval()
    whole = {
        name: packed[name].values()
        for name, p in network.named_parameters()
        if name in packed and torch.equal(packed[name].values().to(p.dtype), p)
    }
    network = network.float()
    network.load_state_dict(whole, strict=False)
    return network


def _plain(
    network: nn.Module,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    names: Sequence[str] | None,
    dynamic_shapes: Any,
) -> Model:
    """Export with float weights under their names; only constants are folded, or weights would leave their levels."""
    from onnxscript import optimizer

    inputs, keywords = _floats(inputs), _floats(keywords)
    bound = inspect.signature(network.forward).bind(*inputs, **keywords)
    if dynamic_shapes is None:
        dynamic_shapes = torch.utils._pytree.tree_map(_varying, dict(bound.arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the inside of PyTorch
        try:
            program = torch.onnx.export(
                network,
                inputs,
                kwargs=keywords,
                input_names=list(names) if names is not None else None,
                dynamic_shapes=dynamic_shapes,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise BadInput(f"PyTorch cannot export {type(network).__name__} as ONNX: {_reason(error)}") from None
    assert program is not None  # nothing is written, so it is returned
    exported = program.model
    parameters = dict(network.named_parameters())

    def should_fold(node: Node) -> bool | None:  # a transposed weight would be another one
        return False if any(value is not None and value.name in parameters for value in node.inputs) else None

    optimizer.fold_constants(exported, onnx_shape_inference=True, should_fold=should_fold)
    _fix_shapes(exported.graph)
    optimizer.remove_unused_nodes(exported)
    if len(exported.graph.outputs) == 1:
        exported.graph.outputs[0].name = "logits"
    return exported


BATCH = torch.export.Dim("batch")


def _varying(given: Any) -> dict[int, Any] | None:
    """Return the dimensions of an argument that may have any size."""
    if not isinstance(given, Tensor) or not given.dim():
        return None
    tokens = given.dim() == 2 and not given.is_floating_point()
    return {0: BATCH, 1: torch.export.Dim.AUTO} if tokens else {0: BATCH}


def _floats(arguments: Any) -> Any:
    """Convert arguments' half-precision tensors to float32, as the network's parameters are."""
    return torch.utils._pytree.tree_map(
        lambda given: given.float() if isinstance(given, Tensor) and given.is_floating_point() else given, arguments
    )


def _fix_shapes(graph: Graph) -> None:
    """Write constants for target shapes of which all but one dimension are known."""
    for node in graph:
        shape = node.outputs[0].shape if node.op_type == "Reshape" else None
        if shape is None or sum(not isinstance(size, int) for size in shape) > 1:
            continue
        sizes = np.array([size if isinstance(size, int) else -1 for size in shape], np.int64)
        value = initializer(f"{node.outputs[0].name}/shape", sizes)
        graph.register_initializer(value)
        node.replace_input_with(1, value)


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0][:200]


def _array(given: Tensor) -> np.ndarray:
    given = given.detach().cpu()
    return (given.float() if given.is_floating_point() else given).numpy()


def _shorten_names(graph: Graph, kept: set[str]) -> None:
    """Replace names that nobody asks for by numbers: in a small network they would outweigh the weights."""
    public = {id(value) for value in (*graph.inputs, *graph.outputs)}
    values = [value for node in graph for value in node.outputs if id(value) not in public]
    values += [value for value in graph.initializers.values() if value.name not in kept]
    for number, value in enumerate(values):
        value.name = str(number)
    for node in graph:
        node.name = None


def _pack(graph: Graph, packed: Mapping[str, PackedParameter]) -> None:
    """Put nodes that unpack in the place of the float weights of the parameters."""
    from onnx_ir.tape import Tape

    tape = Tape(graph)
    for name, parameter in _present(graph, packed).items():
        weights = graph.initializers.pop(name)
        assert weights.dtype is not None
        unpacked = append_unpacked(tape, name, parameter, weights.dtype.numpy())
        weights.replace_all_uses_with(unpacked)
        unpacked.name = name
    graph.sort()


def _present(graph: Graph, packed: Mapping[str, PackedParameter]) -> dict[str, PackedParameter]:
    """Return the packed parameters, without second names of the same weights; refuses what differs from the graph's."""
    found = {id(parameter) for name, parameter in packed.items() if name in graph.initializers}
    present = {}
    for name, parameter in packed.items():
        weights = graph.initializers.get(name)
        if weights is None and id(parameter) in found:
            continue
        if weights is None:
            raise BadInput(f"the network has no parameter {name} to pack")
        value = weights.const_value
        if value is None or not np.array_equal(value.numpy(), parameter.values().numpy()):
            raise BadInput(f"the network's {name} differs from the packed one")
        present[name] = parameter
    return present
