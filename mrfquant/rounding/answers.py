"""What rounding finds for each weight, kept in a folder so that an interrupted walk can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.storage.files import atomic


class Found(NamedTuple):
    """Of a rounded weight.

    Attributes:
        labels: in its shape.
        scale: that multiplies the levels, in a shape that broadcasts with it.
        zero: what is added then, in the scale's shape, or None.
        run: how many neighbouring weights of a slice along the first dimension share a scale; None if all do.
    """

    labels: Tensor
    scale: Tensor
    zero: Tensor | None = None
    run: int | None = None

    def values(self, levels: LevelSet) -> Tensor:
        """The weights."""
        values = self.scale.new_tensor(levels.values)[self.labels.long()] * self.scale
        return values if self.zero is None else values + self.zero


@dataclass(frozen=True)
class LayerReport:
    """How a layer was rounded.

    Attributes:
        name: of its weight.
        rows: of its weight matrix.
        n: columns of its weight matrix.
        energy: half the mean squared distance of its outputs from those that the best real weights give.
        relative: that over gptq's on the same layer.
        changed: share of the labels that differ from gptq's.
        seconds: taken by the solver.
        bound: what the energy cannot fall below, whatever the labels, at its scales; None where it was not asked for.
    """

    name: str
    rows: int
    n: int
    energy: float
    relative: float
    changed: float
    seconds: float
    bound: float | None = None


class Journal:
    """Answers in a folder, a file for each weight; without a folder nothing is kept.

    Args:
        folder: is made if it is not there.
        key: of the call that the answers belong to; a folder with another one is refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, key: str = "") -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "key"
        if not file.exists():
            with atomic(file) as out:
                out.write(key.encode())
        elif file.read_text() != key:
            raise BadInput(
                f"{folder} keeps the answers of another call, with other settings, batches or another network: give "
                "another folder, or delete it"
            )

    def read(self, name: str) -> tuple[Found, LayerReport, Tensor] | None:
        """The answer for a weight, its report, and the state of the random numbers after it, if they are known."""
        if self.folder is None or not (file := self._file(name)).exists():
            return None
        with safe_open(file, framework="pt") as entry:
            tensors, facts = {key: entry.get_tensor(key) for key in entry.keys()}, entry.metadata()  # noqa: SIM118
        answer = Found(tensors["labels"], tensors["scale"], tensors.get("zero"), json.loads(facts["run"]))
        return answer, LayerReport(**json.loads(facts["report"])), tensors["random"]

    def write(self, name: str, answer: Found, report: LayerReport, state: Tensor) -> None:
        """Keep an answer."""
        if self.folder is None:
            return
        parts = {"labels": answer.labels, "scale": answer.scale, "zero": answer.zero, "random": state}
        tensors = {key: t.cpu().contiguous() for key, t in parts.items() if t is not None}
        with atomic(self._file(name)) as out:
            out.write(save(tensors, {"run": json.dumps(answer.run), "report": json.dumps(asdict(report))}))

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"


def fingerprint(model: nn.Module, batches: Sequence[Any], settings: str) -> str:
    """Of a call: a hash of the network's state, of all that is in the batches, and of the settings."""
    digest = hashlib.sha256(settings.encode())
    for leaf in (*model.state_dict().values(), *tree_leaves(list(batches))):
        if isinstance(leaf, Tensor):
            digest.update(leaf.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
