"""The results of rounding, stored in a folder so that an interrupted call can go on."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.packing import PackedNetwork, pack_model
from mrfquant.packing.chains import PackedChains
from mrfquant.storage.files import atomic, write_text
from mrfquant.text import aligned


class RoundedWeight(NamedTuple):
    """Labels, scale and zero point of one weight."""

    labels: Tensor  # in the weight's shape
    scale: Tensor  # multiplies the levels, in a shape that broadcasts with the weight
    zero: Tensor | None = None  # is added to the scaled levels, in the scale's shape
    run: int | None = None  # neighbouring weights of a row that share a scale; None: all
    turned: bool = False  # see `mrfquant.labelling.matrices.Matrix`
    stacked: bool = False

    def values(self, levels: LevelSet) -> Tensor:
        """Return the weights."""
        values = self.scale.new_tensor(levels.values)[self.labels.long()] * self.scale
        return values if self.zero is None else values + self.zero

    def record(self) -> dict[str, Any]:
        """Return the same as plain values and tensors."""
        return self._asdict()

    def entry(self, levels: LevelSet) -> dict[str, Any]:
        """Return what `mrfquant.packing.pack_model` takes for this weight."""
        scale, zero = (t if t is None else t.expand(self.labels.shape) for t in (self.scale, self.zero))
        matrix = {"turned": self.turned, "stacked": self.stacked}
        return {"levels": levels.values, "scale": scale, "group_size": self.run, "zero": zero, "matrix": matrix}


class RoundedChains(NamedTuple):
    """Chains of one weight through a trellis, packed."""

    packed: PackedChains

    @property
    def labels(self) -> Tensor:
        """The labels, in the weight's shape; they belong to mixed inputs, see `mrfquant.labelling.mixing`."""
        return self.packed.labels()

    @property
    def scale(self) -> Tensor:
        """The scales of the rows, in a shape that broadcasts with the weight."""
        return self.packed.scale.float().view(-1, *[1] * (len(self.packed.shape) - 1))

    def values(self, levels: LevelSet) -> Tensor:
        """Return the weights."""
        return self.packed.values()

    def record(self) -> dict[str, Any]:
        """Return the same as plain values and tensors."""
        return self.packed.record()

    def entry(self, levels: LevelSet) -> dict[str, Any]:
        """Return what `mrfquant.packing.pack_model` takes for this weight."""
        return self.packed.record()


AnyRounded = RoundedWeight | RoundedChains


@dataclass(frozen=True)
class LayerReport:
    """How a layer was rounded.

    Attributes:
        name: name of its weight.
        rows: rows of its weight matrix.
        n: columns of its weight matrix.
        energy: half the mean squared distance of its outputs from those of the best real weights.
        relative: the energy over gptq's on the same layer; of a trellis, over gptq's with even levels of as many bits.
        changed: fraction of the labels that differ from gptq's; None for a trellis.
        seconds: time taken by the solver.
        bound: lower bound on the energy of any labels at these scales; None unless requested.
    """

    name: str
    rows: int
    n: int
    energy: float
    relative: float
    changed: float | None
    seconds: float
    bound: float | None = None


@dataclass
class RoundedNetwork:
    """A network whose weights were rounded.

    Attributes:
        model: the network, with rounded weights.
        levels: the levels of every rounded weight, by name.
        layers: how each layer was rounded, in the order of their use.
        notes: weights that were not rounded, or had few inputs.
        coverage: how many parameters were rounded, and of what kind the others are, a line each.
        answers: labels, scales and zero points of every rounded weight.
        seconds: time taken.
    """

    model: nn.Module
    levels: Mapping[str, LevelSet]
    layers: list[LayerReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    coverage: list[str] = field(default_factory=list)
    answers: Mapping[str, AnyRounded] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def labels(self) -> dict[str, Tensor]:
        """The labels of every rounded weight, in its shape."""
        return {name: answer.labels for name, answer in self.answers.items()}

    def __str__(self) -> str:
        rows = [["layer", "rows x weights", "bits", "energy / gptq", "labels changed", "seconds"]]
        for layer in self.layers:
            bits, shape = self.levels[layer.name].bits, f"{layer.rows:,} x {layer.n:,}"
            changed = "" if layer.changed is None else f"{layer.changed:.1%}"
            figures = [f"{layer.relative:.3f}", changed, f"{layer.seconds:.1f}"]
            rows.append([layer.name, shape, f"{bits}", *figures])
        if any(layer.bound for layer in self.layers):
            rows[0].append("above the optimum")
            for row, layer in zip(rows[1:], self.layers, strict=True):
                row.append(f"at most {layer.energy / layer.bound - 1:.0%}" if layer.bound else "")
        return "\n".join([aligned(rows), *self.notes, *self.coverage, f"{self.seconds:.1f} s"])

    def pack(self) -> PackedNetwork:
        """Return the network with its labels as bits."""
        return pack_model(self.model, self.entries())

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return what `mrfquant.packing.pack_model` takes for each rounded weight, by name."""
        return {name: answer.entry(self.levels[name]) for name, answer in self.answers.items()}

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the packed network to a safetensors file, for `mq.load(path, model)`; return its size in bytes."""
        return self.pack().write(path)


class Journal:
    """Results in a folder, a file for each weight; without a folder it stores nothing.

    The key identifies the call: a folder with another key is refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, key: str = "") -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "key"
        if not file.exists():
            write_text(file, key)
        elif file.read_text() != key:
            told = f"{folder} keeps the answers of another call, with other settings, batches or another network"
            raise BadInput(f"{told}: give another folder, or delete it")

    def read(self, name: str) -> tuple[AnyRounded, LayerReport, Tensor] | None:
        """Return a weight's result, its report and the state of the generator after it; None if not stored."""
        if self.folder is None or not (file := self.folder / f"{name}.safetensors").exists():
            return None
        with safe_open(file, framework="pt") as entry:
            tensors, facts = {key: entry.get_tensor(key) for key in entry.keys()}, entry.metadata()  # noqa: SIM118
        state, record = tensors.pop("random"), tensors | json.loads(facts["answer"])
        chains = "trellis" in record
        answer = RoundedChains(PackedChains.of_record(record)) if chains else RoundedWeight(**record)
        return answer, LayerReport(**json.loads(facts["report"])), state

    def write(self, name: str, answer: AnyRounded, report: LayerReport, state: Tensor) -> None:
        """Store a result."""
        if self.folder is None:
            return
        parts = answer.record() | {"random": state}
        tensors = {key: t.cpu().contiguous() for key, t in parts.items() if isinstance(t, Tensor)}
        facts = {"answer": {key: part for key, part in parts.items() if key not in tensors}, "report": asdict(report)}
        with atomic(self.folder / f"{name}.safetensors") as out:
            out.write(save(tensors, {key: json.dumps(value) for key, value in facts.items()}))


def fingerprint(model: nn.Module, batches: Sequence[Any], settings: str) -> str:
    """Return a hash of the network's state, the batches and the settings of a call."""
    digest = hashlib.sha256(settings.encode())
    for leaf in (*model.state_dict().values(), *tree_leaves(list(batches))):
        if isinstance(leaf, Tensor):
            digest.update(leaf.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
