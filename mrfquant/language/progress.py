"""Progress of rounding a language model, in the folder that it will be written to.

Every finished block, and the hidden states behind the last one, so that the same call goes on after a kill.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from mrfquant.errors import BadInput
from mrfquant.rounding.answers import AnyRounded, RoundedWeight
from mrfquant.storage.files import atomic, leftovers, read_text, write_json, write_text

REPORT, FOLDER = "report.json", "progress"


class Progress:
    """Results in `out`, of the call with this key; a folder that belongs to another call is refused."""

    def __init__(self, out: Path, key: str) -> None:
        self.out, self.key, self._folder = out, key, out / FOLDER
        present = self._stored_key()
        if present not in (None, key):
            told = f"{out} belongs to another call, with other settings, texts or another model"
            raise BadInput(f"{told}: give another folder, or delete it")
        if present is None and out.exists() and any(path.name != FOLDER for path in out.iterdir()):
            raise BadInput(f"{out} is there and not empty: give a new folder")

    def finished(self) -> dict[str, Any] | None:
        """Return the report of a finished call."""
        return json.loads(read_text(self.out / REPORT))["result"] if (self.out / REPORT).exists() else None

    def journal(self, index: int) -> Path:
        """Return the folder for the results of a block's layers."""
        return self._folder / f"layers-{index}"

    def scratch(self, name: str) -> Path:
        """Return a new folder, to be renamed when it is complete."""
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def keep(self, index: int, answers: Mapping[str, AnyRounded]) -> None:
        """Store the results of a block."""
        tensors: dict[str, Tensor] = {}
        facts: dict[str, str] = {}
        for name, answer in answers.items():
            assert isinstance(answer, RoundedWeight)
            tensors |= {f"{name}:labels": answer.labels, f"{name}:scale": answer.scale}
            tensors |= {} if answer.zero is None else {f"{name}:zero": answer.zero}
            facts[name] = json.dumps(answer.run)
        with atomic(self._block(index)) as file:
            file.write(save({key: tensor.contiguous() for key, tensor in tensors.items()}, facts))

    def answers(self, index: int) -> dict[str, RoundedWeight]:
        """Read the results of a block."""
        if not self._block(index).exists():
            return {}
        with safe_open(self._block(index), framework="pt") as file:
            tensors, facts = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
        return {
            name: RoundedWeight(
                tensors[f"{name}:labels"], tensors[f"{name}:scale"], tensors.get(f"{name}:zero"), json.loads(run)
            )
            for name, run in facts.items()
        }

    def write(self, streams: Mapping[str, Tensor], blocks: list[dict[str, Any]]) -> None:
        """Store the hidden states behind the last finished block, and the reports of all of them."""
        head = json.dumps({"blocks": blocks, "shapes": {name: list(t.shape) for name, t in streams.items()}})
        with atomic(self._folder / "state") as file:  # no copy of them in memory
            file.write(head.encode() + b"\n")
            for tensor in streams.values():
                file.write(tensor.contiguous().numpy().data)
        shutil.rmtree(self.journal(len(blocks) - 1), ignore_errors=True)

    def read(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Return what `write` stored last; nothing for a new call."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._folder / "key", self.key)
        for path in leftovers(self._folder):
            path.unlink()
        if not (self._folder / "state").exists():
            return {}, []
        with open(self._folder / "state", "rb") as file:
            head, streams = json.loads(file.readline()), {}
            for name, shape in head["shapes"].items():
                values = np.fromfile(file, np.float32, int(np.prod(shape)))
                streams[name] = torch.from_numpy(values).view(shape)
        return streams, head["blocks"]

    def finish(self, report: dict[str, Any]) -> None:
        """Write the report, and remove what is no longer needed."""
        write_json(self.out / REPORT, {"key": self.key, "result": report})
        shutil.rmtree(self._folder, ignore_errors=True)

    def _block(self, index: int) -> Path:
        return self._folder / f"block-{index}.safetensors"

    def _stored_key(self) -> str | None:
        try:
            if (self.out / REPORT).exists():
                return json.loads(read_text(self.out / REPORT))["key"]
            return read_text(self._folder / "key") if (self._folder / "key").exists() else None
        except (ValueError, KeyError, TypeError) as e:
            raise BadInput(f"{self.out / REPORT} is damaged ({e}): give another folder, or delete it") from None
