"""A packed network as one safetensors file; docs/reference/format.md describes the format for other readers.

Nothing that is read is executed: the network's name is looked up among those that are known, its shapes are compared
with the file's before anything is allocated, and a checksum covers all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mrfquant.errors import BadInput
from mrfquant.packing.bits import MOST, MOST_FACTOR, MOST_ROOM, inflated, packed_size
from mrfquant.packing.chains import COLUMNS, PackedChains, parsed_chains
from mrfquant.packing.parameter import MATRICES, PackedParameter
from mrfquant.storage.files import atomic
from mrfquant.text import printable

FORMAT, VERSION = "mrfquant", "1"
DEFLATED = "+zlib"  # after the encoding of labels
PARTS = ("scale", "zero", COLUMNS)  # suffixes of a parameter's tensors, after its name and a colon
Packed = PackedParameter | PackedChains
FLOATS = (torch.float32, torch.int64)  # types of tensors that are not packed
KEYS = {"format", "network", "input_info", "blocks", "origin", "sha256"}  # and "tied", if anything is


@dataclass
class PackedNetwork:
    """A network as a file holds it.

    Attributes:
        name: of the network, as in `mrfquant.models.NETWORKS`.
        arguments: that it is built from.
        input_info: 'mean' and 'std' per channel of images in [0, 1], 'classes' or tokens in the order of the logits.
        parameters: those on levels.
        floats: everything else of the state dict.
        origin: method, data set, accuracy and so on, for people.
        coverage: how many parameters are on levels, and of what kind the others are, a line each; not in files.
    """

    name: str
    arguments: dict[str, Any]
    input_info: dict[str, list[Any]]
    parameters: dict[str, Packed]
    floats: dict[str, Tensor]
    origin: dict[str, Any] = field(default_factory=dict)
    coverage: list[str] = field(default_factory=list, compare=False)

    @property
    def title(self) -> str:
        """The network's name and origin in a line that is fit for a terminal."""
        return printable(", ".join([self.name, *(f"{key} {value}" for key, value in self.origin.items())]))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the network's state with its weights as float32."""
        return {name: p.values() for name, p in self.parameters.items()} | self.floats

    def tied(self) -> dict[str, str]:
        """Return the names of what another name has already, and that name: a file holds it once."""
        first: dict[Any, str] = {}
        held: dict[str, Any] = {name: id(p) for name, p in self.parameters.items()}
        held |= {name: (t.data_ptr(), t.shape, t.dtype) for name, t in self.floats.items() if t.numel()}
        return {name: other for name, what in held.items() if (other := first.setdefault(what, name)) != name}

    def write(self, path: str | os.PathLike[str], compress: bool = False) -> int:
        """Write the file, whole or not at all; returns its size in bytes.

        Args:
            compress: deflate the labels, which pays where some are much rarer than others.
        """
        tied = self.tied()
        parameters = {name: p for name, p in self.parameters.items() if name not in tied}
        metadata = {
            "format": f"{FORMAT} {VERSION}",
            "network": _json([self.name, self.arguments]),
            "input_info": _json(self.input_info),
            "blocks": _json(_blocks(parameters, DEFLATED if compress else "")),
            "origin": _json(self.origin),
            **({"tied": _json(tied)} if tied else {}),
        }
        tensors = {name: p.stored(compress) for name, p in parameters.items()}
        tensors |= {name: t for name, t in self.floats.items() if name not in tied}
        tensors |= {f"{name}:{part}": tensor for name, p in parameters.items() for part, tensor in p.parts.items()}
        tensors = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}  # no two share memory
        if sum(len(p.data) for p in parameters.values()) > _room(tensors):
            raise BadInput("the labels are nearly all alike: a file with them compressed would not be read again")
        metadata["sha256"] = _checksum(metadata, tensors)
        data = save(tensors, metadata)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length]) | {"__metadata__": metadata}  # which safetensors writes in any order
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with atomic(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(memoryview(data)[8 + length :])
        return len(data) - length + len(text)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PackedNetwork:
        """Read a file, checked in every respect that does not need the network."""
        metadata, tensors = _open(Path(path))
        try:
            return cls._parse(metadata, tensors)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise BadInput(f"{path}: its metadata is not what version {VERSION} has; pack the run again") from None

    @classmethod
    def _parse(cls, metadata: dict[str, str], tensors: dict[str, Tensor]) -> PackedNetwork:
        name, arguments = json.loads(metadata["network"])
        input_info, origin = json.loads(metadata["input_info"]), json.loads(metadata["origin"])
        parameters: dict[str, Packed] = {}
        left, room = dict(tensors), _room(tensors)
        for levels, encoding, shapes, *group_size in json.loads(metadata["blocks"]):
            for parameter, shape in shapes.items():
                parameters[parameter] = _parameter(parameter, levels, encoding, shape, group_size, left, room)
                room -= len(parameters[parameter].data)
        for alias, tied in json.loads(metadata.get("tied", "{}")).items():
            if alias in parameters or alias in left or (tied not in parameters and tied not in left):
                raise BadInput(f"{alias} is said to be the same as {str(tied)[:60]}, which cannot be")
            parameters |= {alias: parameters[tied]} if tied in parameters else {}
            left |= {alias: left[tied]} if tied in left else {}
        for tensor, value in left.items():
            if value.dtype not in FLOATS:
                raise BadInput(f"the tensor {tensor} is {value.dtype}, expected float32 or int64")
            if not value.isfinite().all():
                raise BadInput(f"the tensor {tensor} has values that are not finite")
        if not (isinstance(name, str) and isinstance(arguments, dict) and isinstance(origin, dict)):
            raise TypeError
        mean, std = input_info["mean"], input_info["std"]
        if len(mean) != len(std) or not all(0 < s < math.inf for s in std):
            raise ValueError
        return cls(name, arguments, input_info, parameters, left, origin)


def _room(tensors: dict[str, Tensor]) -> int:
    """Return how many bytes the labels of a file may take, compressed or not, given what is stored."""
    return MOST_ROOM + MOST_FACTOR * sum(t.nbytes for t in tensors.values())


def packed_network(model: nn.Module) -> PackedNetwork:
    """Return what the file says that `load` made the network from."""
    return vars(model)["packed_network"]


def _blocks(parameters: dict[str, Packed], after: str) -> list[list[Any]]:
    """Group parameters by what they share: [levels, encoding, {name: shape}], and a group size or chain."""
    blocks: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    for name, p in parameters.items():
        blocks.setdefault(p.block, {})[name] = list(p.shape)
    return [
        [[_short(q) for q in levels], encoding + after, shapes, *size]
        for (levels, encoding, *size), shapes in blocks.items()
    ]


def _parameter(
    name: str, levels: Any, encoding: Any, shape: Any, size: list[Any], tensors: dict[str, Tensor], room: int
) -> Packed:
    """Take one packed parameter out of the tensors; its labels may have as many bytes as there is `room` for."""
    compressed = isinstance(encoding, str) and encoding.endswith(DEFLATED)
    encoding = encoding.removesuffix(DEFLATED) if compressed else encoding
    sizes = [size for size in shape if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**40]
    if len(sizes) < len(shape) or len(shape) > 16 or math.prod(max(1, size) for size in sizes) >= 2**60:
        raise BadInput(f"{name} has the invalid shape {str(shape)[:60]}")
    if name not in tensors:
        raise BadInput(f"{name} is in the metadata, but not in the file")
    data, parts = tensors.pop(name), {part: tensors.pop(f"{name}:{part}", None) for part in PARTS}

    def labels(count: int) -> Tensor:
        return inflated(data, count, room) if compressed else data

    if encoding == PackedChains.encoding:
        return parsed_chains(name, levels, shape, size, labels, parts)
    return _parsed_levels(name, levels, encoding, shape, size, labels, parts)


def _parsed_levels(
    name: str,
    levels: Any,
    encoding: Any,
    shape: Any,
    group_size: list[Any],
    data: Callable[[int], Tensor],
    parts: dict[str, Tensor | None],
) -> PackedParameter:
    """Return a parameter on levels; `data` gives so many bytes of labels."""
    encoding, mark, after = str(encoding).partition("+")
    matrix = MATRICES.get(mark + after)
    if matrix is None or (after and len(shape) < 2 + matrix.stacked):
        raise BadInput(f"{name} of the shape {tuple(shape)} cannot have the encoding {encoding + mark + after[:40]!r}")
    numbers = [float(level) for level in levels]
    if not 2 <= len(numbers) <= MOST or not all(map(math.isfinite, numbers)) or numbers != sorted(set(numbers)):
        raise BadInput(f"{name} has levels that are not finite, different and increasing")
    if encoding not in ("bits", "base3") or (encoding == "base3" and len(numbers) != 3):
        raise BadInput(f"{name} has the encoding {str(encoding)[:40]!r}, expected 'bits', or 'base3' for three levels")
    size = group_size[0] if group_size else None
    if len(group_size) > 1 or (size is not None and (type(size) is not int or not 0 < size < 2**40)):
        raise BadInput(f"{name} has the invalid group size {str(group_size)[:60]}")
    scale, zero = parts["scale"], parts["zero"]
    for what, part in (("scale", scale), ("zero point", zero)):
        if part is not None and (part.dtype != torch.float32 or not part.isfinite().all()):
            raise BadInput(f"the {what} of {name} is not finite float32")
    if size is not None and scale is None:
        raise BadInput(f"{name} has a group size and no scale")
    largest = max(map(abs, numbers)) * (1.0 if scale is None or not scale.numel() else scale.abs().max().item())
    largest += 0.0 if zero is None or not zero.numel() else zero.abs().max().item()
    if largest > torch.finfo(torch.float32).max:
        raise BadInput(f"{name} has levels, scales or zero points beyond what a float32 can hold")
    labels = data(packed_size(math.prod(shape), len(numbers), encoding))
    return PackedParameter(labels, tuple(shape), tuple(numbers), encoding, scale, size, zero, matrix)


def _open(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read metadata and tensors of a file, and check its checksum."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise BadInput(f"{path} {what}: give a file written by mrfquant pack")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kind, _, version = metadata.get("format", "").partition(" ")
            if kind != FORMAT:
                raise BadInput(f"{path} is a safetensors file of another kind: give one written by mrfquant pack")
            if version != VERSION:
                raise BadInput(
                    f"{path} has version {version[:20]!r} of the format, this program reads {VERSION!r}: use another "
                    "release, or pack the run again"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except BadInput:
        raise
    except (SafetensorError, UnicodeDecodeError, ValueError, OSError, TypeError) as error:
        raise BadInput(f"{path} is not a whole safetensors file ({str(error)[:80]}): copy or pack it again") from None
    if metadata.keys() - {"tied"} != KEYS or _checksum(metadata, tensors) != metadata["sha256"]:
        raise BadInput(f"{path} was altered or damaged, its checksum is wrong: copy or pack it again")
    return metadata, tensors


def _checksum(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """Return SHA-256 of all metadata but itself and of all tensors, by name."""
    digest = hashlib.sha256()
    for key in sorted(metadata.keys() - {"sha256"}):
        digest.update(f"{key}={metadata[key]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _short(number: float) -> float:
    """Return the same number in fewer characters, if it is whole."""
    return int(number) if float(number).is_integer() else number


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
