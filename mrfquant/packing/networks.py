"""Between packed files and networks that compute."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from mrfquant.compute import bounded_network
from mrfquant.config.extras import need_extra
from mrfquant.config.plugins import import_installed_plugins
from mrfquant.errors import BadInput
from mrfquant.labelling import Trellis
from mrfquant.labelling.matrices import Matrix
from mrfquant.labelling.selection import PRODUCTS, covered, left_out
from mrfquant.models import NETWORKS
from mrfquant.packing.bits import Encoding
from mrfquant.packing.chains import PackedChains
from mrfquant.packing.file import FLOATS, Packed, PackedNetwork
from mrfquant.packing.parameter import PackedParameter, in_columns, tied_names, under_all_names

# By name: "levels", "scale" in its shape or None, "group_size", maybe "zero"; or the record of `PackedChains`.
Labels = Mapping[str, Mapping[str, Any]]
COUNTER = "num_batches_tracked"  # batch norm's buffer that training needs and a packed network does not

if TYPE_CHECKING:
    from mrfquant.labelling import Labelling


def load(
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    activations: Literal["float", "int8"] = "float",
    calibration: Sequence[Any] | None = None,
) -> nn.Module:
    """Return the network of a packed file, in eval mode; what the file says is its `packed_network`.

    Args:
        path: of the file.
        model: a network of your own to load into, needed if the file's is not one of `mrfquant.models`.
        activations: 'float' computes with float weights in PyTorch; 'int8' with 8-bit activations and weights of a byte
            in ONNX Runtime, on the CPU.
        calibration: for 'int8', batches of inputs to find the ranges of activations with; some of the training data
            that the file names by default.
    """
    network = PackedNetwork.read(path)
    given, model = model, _build(network, path) if model is None else model
    _check_fits(network, model, path)
    if lost := [n for n, b in model.named_buffers() if b.is_meta and n not in model.state_dict()]:
        if given is not None:
            raise BadInput(
                f"the buffer {lost[0]} is on the meta device and in no file, as it is no part of the state: build the "
                "network on the CPU"
            )
        model = _build(network, path, device="cpu")
    if any(t.is_meta for t in model.state_dict().values()):
        model = model.to_empty(device="cpu")
    counters = {name: torch.tensor(0) for name in model.state_dict() if name.endswith(COUNTER)}
    model.load_state_dict(network.state_dict() | counters)
    if activations == "int8":
        model = _in_runtime(model, network, path, calibration)
    elif activations != "float":
        raise BadInput(f"activations {activations!r}, expected 'float' or 'int8'")
    model.packed_network = network  # type: ignore[assignment]
    return model.eval()


def _in_runtime(
    model: nn.Module, network: PackedNetwork, path: str | os.PathLike[str], calibration: Sequence[Any] | None
) -> nn.Module:
    """Return the network with 8-bit activations in ONNX Runtime."""
    from mrfquant.packing.onnx_export import to_onnx
    from mrfquant.packing.origin import arguments_of, dataset_of, training_batches
    from mrfquant.packing.runtime import RuntimeNetwork

    need_extra("onnx", "8-bit activations")
    if calibration is None:
        batches = training_batches(dataset_of(network, path))
    else:
        batches = [arguments_of(inputs) for inputs in calibration]
    if not batches:
        raise BadInput("no batches to find the ranges of activations with: give some as calibration")
    inputs, keywords = batches[0]
    return RuntimeNetwork(to_onnx(model, network.parameters, inputs, keywords, calibration=batches).data)


def labels_of(labelling: Labelling) -> Labels:
    """Return how the labelled parameters are quantized, as values that a checkpoint can hold."""
    labels: dict[str, dict[str, Any]] = {}
    for name in labelling.labelled.spans:
        levels = labelling.block_of(name).levels
        own = {"path_of": [levels.bits, levels.memory]} if isinstance(levels, Trellis) else {}
        labels[name] = {
            "levels": list(levels.values),
            "scale": labelling.scale_of(name),
            "group_size": labelling.run_of(name),
            "matrix": asdict(labelling.labelled.matrix(name)),
            **own,
        }
    return labels


def pack_model(
    model: nn.Module,
    labelling: Labelling | Labels,
    state: Mapping[str, Tensor] | None = None,
    encoding: Encoding = "bits",
) -> PackedNetwork:
    """Pack a labelled network.

    Args:
        labelling: of the network, or by the name of each parameter its levels, its scale, in its shape or None, its
            group size or None, and, if it has any, its zero points and what `Matrix` says of it; see `labels_of`.
        state: its state dict with rounded weights; the network's own, as within `solver.rounded()`, by default.
        encoding: of parameters with three levels; the others are packed as bits.
    """
    labels = labelling if isinstance(labelling, Mapping) else labels_of(labelling)
    return pack_state(architecture(model), labels, model.state_dict() if state is None else state, encoding)


def architecture(model: nn.Module) -> dict[str, Any]:
    """Return what is known of a network beside its state: its class, arguments, and parameters."""
    arguments = json.loads(json.dumps(getattr(model, "arguments", {}), default=repr))
    kind = type(model)
    # Ours remember their arguments: another class of the same name cannot be built from what a file says.
    name = (
        f"{kind.__module__}.{kind.__name__}" if kind.__name__ in NETWORKS and not hasattr(model, "arguments") else None
    )
    reasons = left_out(model, PRODUCTS)
    parameters = {name: (p.numel(), reasons[name]) for name, p in model.named_parameters()}
    return {
        "name": name or kind.__name__,
        "arguments": arguments,
        "tied": tied_names(model),
        "parameters": parameters,
    }


def pack_state(
    network: Mapping[str, Any], labels: Labels, state: Mapping[str, Tensor], encoding: Encoding = "bits"
) -> PackedNetwork:
    """Pack a state dict, given the `architecture` of its network and the labels of its parameters."""
    parameters = {}
    if missing := [name for name in labels if name not in state]:
        raise BadInput(
            f"{missing[0]} is not in the network any more: pack or save before layers are wrapped or renamed"
        )
    for name, label in labels.items():
        try:
            parameters[name] = _packed(_storable(name, state[name]), state[name].dtype, label, encoding)
        except BadInput as error:
            raise BadInput(f"{name}: {error}; only what is exactly on its levels can be packed") from None
    parameters = under_all_names(network["tied"], parameters)
    left = {n: t for n, t in state.items() if n not in parameters and not n.endswith(COUNTER)}
    once = {(t.data_ptr(), t.shape, t.dtype): _storable(n, t) for n, t in left.items()}
    floats = {n: once[t.data_ptr(), t.shape, t.dtype] for n, t in left.items()}
    empty: dict[str, list[Any]] = {"mean": [], "std": [], "classes": []}
    told = covered(network["parameters"], parameters) if "parameters" in network else []
    return PackedNetwork(network["name"], network["arguments"], empty, parameters, floats, coverage=told)


def _packed(weights: Tensor, precision: torch.dtype, label: Mapping[str, Any], encoding: Encoding) -> Packed:
    """Pack one parameter by its entry of `Labels`."""
    if isinstance(label, Mapping) and "trellis" in label:
        chains = PackedChains.of_record(label)
        if not torch.equal(chains.values().to(precision), weights.to(precision).cpu()):
            raise BadInput("its weights are not those of its chains")
        return chains
    levels = tuple(label["levels"])
    given = [part for part in (label["scale"], label.get("zero")) if part is not None and part.numel()]
    matrix = Matrix(**label.get("matrix", {}))
    in_rows = [matrix.in_rows(part.cpu().float()) for part in given]
    compact, group_size = _compact(in_rows, label["group_size"])
    scale, zero, *_ = [*compact, None, None]
    if "path_of" in label:
        rows = torch.ones(1) if scale is None else scale
        chains = PackedChains.of_weights(weights, Trellis(*label["path_of"]), rows.expand(len(weights)).contiguous())
        if not torch.equal(chains.values().to(precision), weights.to(precision).cpu()):
            raise BadInput("its weights are no path through its trellis")
        return chains
    form: Encoding = encoding if len(levels) == 3 else "bits"
    return PackedParameter.of(weights, levels, form, scale, group_size, precision, zero, matrix)


def _storable(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as files have it: float32, or int64."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float().contiguous()  # exact
    if tensor.dtype not in FLOATS:
        raise BadInput(f"{name} is {tensor.dtype}: files hold float32 and int64, convert the network first")
    return tensor.contiguous()


def _compact(parts: list[Tensor], group_size: int | None) -> tuple[list[Tensor], int | None]:
    """Reduce scales and zero points to one number, one a slice or one a run of it; return the size of runs, too."""
    if all((part == part.flatten()[:1]).all() for part in parts):
        return [_copied(part.flatten()[:1]) for part in parts], None
    parts = [part.flatten(1) for part in parts]
    if all((rows == rows[:, :1]).all() for rows in parts):
        return [_copied(rows[:, 0]) for rows in parts], None
    columns = parts[0].shape[1]
    runs = [_copied(rows[:, :: group_size or columns]) for rows in parts]
    alike = group_size and all(map(torch.equal, (in_columns(run, group_size, columns) for run in runs), parts))
    if not alike:
        raise BadInput(f"its scale differs within {'a run' if group_size else 'an output channel'}")
    return runs, group_size


def _copied(part: Tensor) -> Tensor:
    return part.clone(memory_format=torch.contiguous_format)  # it may be one number, seen as many


def _build(network: PackedNetwork, path: str | os.PathLike[str], device: str = "meta") -> nn.Module:
    """Return the network that the file names; by default without memory for its parameters yet."""
    import_installed_plugins()
    if network.name not in NETWORKS:
        raise BadInput(
            f"{path} holds a network {network.name[:60]!r}, known are {', '.join(NETWORKS)}: import the module that "
            "makes it known (--import MODULE), or build it and give it as load(path, model)"
        )
    build = NETWORKS[network.name]
    # Defaults are given, too: gin would fill in what is bound at the moment.
    defaults = {p.name: p.default for p in inspect.signature(build).parameters.values() if p.default is not p.empty}
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in network.arguments.items()}
    try:
        with torch.device(device), bounded_network(100 + 4 * (len(network.parameters) + len(network.floats))):
            return build(**defaults | given)
    except (BadInput, TypeError, ValueError, RuntimeError, ArithmeticError, LookupError):
        raise BadInput(f"{path}: a {network.name} cannot be built from the arguments in the file") from None


def _check_fits(network: PackedNetwork, model: nn.Module, path: str | os.PathLike[str]) -> None:
    held: dict[str, Any] = {name: p.shape for name, p in network.parameters.items()}
    held |= {name: tuple(t.shape) for name, t in network.floats.items()}
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items() if not name.endswith(COUNTER)}
    if held != expected:
        name = next(n for n in {**expected, **held} if held.get(n) != expected.get(n))
        raise BadInput(
            f"{path} does not fit {type(model).__name__}: {name} is {_shape(held.get(name))} in the file and "
            f"{_shape(expected.get(name))} in the network"
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else "x".join(map(str, shape)) or "a number"
