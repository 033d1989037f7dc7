"""From the best checkpoint of a run to a packed network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from mrfquant.data import Dataset
from mrfquant.errors import BadInput
from mrfquant.metric import Metric
from mrfquant.objectives import CrossEntropy, Objective
from mrfquant.packing.bits import Encoding
from mrfquant.packing.file import PackedNetwork
from mrfquant.packing.networks import architecture, labels_of, pack_state
from mrfquant.storage.checkpoints import fitting
from mrfquant.storage.run_folder import RunFolder
from mrfquant.text import printable

if TYPE_CHECKING:
    from mrfquant.labelling import Labelling


def pack(run: RunFolder | str | os.PathLike[str], encoding: Encoding = "bits") -> PackedNetwork:
    """Pack the best model of a finished run; refuses one that is not quantized, or not exactly on its levels.

    Args:
        run: the run, or its folder.
        encoding: of parameters with three levels; the others are packed as bits.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(Path(run))
    best, summary = folder.best(), folder.summary() or {}
    record = best["packing"]
    if not record.get("labels"):
        raise BadInput(f"{folder.path} is not quantized: there are no labels to pack; train it with levels, as [-1, 1]")
    with fitting(f"the best model of {folder.path} cannot be packed"):
        network = pack_state(record["network"], record["labels"], best["model"], encoding)
        network.input_info = record["input_info"]
        metric, origin = Metric.of(summary).name, dict(record["origin"])
        network.origin = {key: origin.pop(key) for key in ("method", "dataset", "seed")}
        json.dumps([network.name, network.arguments, network.input_info, record["origin"]])  # as the file will hold it
    network.origin |= {"run": folder.path.resolve().name, metric: round(summary[f"test_{metric}"], 4), **origin}
    return network


def packing_record(
    model: nn.Module, labelling: Labelling, dataset: Dataset, objective: Objective, method: str, seed: int
) -> dict[str, Any]:
    """Return what `pack` needs of a run beside its best state, in plain values and tensors, for its checkpoint."""
    judged, arguments = objective.evaluated_as, getattr(dataset, "arguments", {"loader": dataset.name})
    origin: dict[str, Any] = {"method": method, "dataset": dataset.name, "seed": seed}
    if arguments != {"loader": dataset.name}:
        origin["data"] = arguments
    if type(judged) is not CrossEntropy:
        origin["objective"] = type(judged).__name__
    if objective.temperature != 1:
        origin["temperature"] = objective.temperature  # to divide the logits by, for probabilities
    if dataset.stand_in:
        origin["stand_in"] = True
    plain = json.loads(json.dumps({"input_info": dataset.description(), "origin": origin}, default=repr))
    return {"network": architecture(model), "labels": labels_of(labelling), **plain}


def size_report(network: PackedNetwork, size: int, compressed: bool = False) -> list[str]:
    """Return line by line what a file of `size` bytes consists of."""
    tied = network.tied()
    packed = [p for name, p in network.parameters.items() if name not in tied]
    weights = sum(p.numel for p in packed)
    labels = sum(p.nbytes - len(p.data) + len(p.stored(compressed)) for p in packed)
    floats = {name: t.nbytes for name, t in network.floats.items() if name not in tied}
    free = {name: n for name, n in floats.items() if not name.endswith(("running_mean", "running_var"))}
    statistics = sum(floats.values()) - sum(free.values())
    rest, parameters = size - statistics, 4 * weights + sum(free.values())
    heads = ["coverage     ", *[" " * 13] * len(network.coverage)]
    return [
        *(head + line for head, line in zip(heads, network.coverage, strict=False)),
        f"weights      {weights:,} on levels: {labels:,} bytes, {8 * labels / max(1, weights):.3f} bits each",
        f"header       {size - labels - sum(floats.values()):,} bytes",
        f"batch norm   {statistics:,} bytes of statistics, float",
        *(f"not packed   {printable(name)}, float: {n:,} bytes" for name, n in free.items()),
        f"file         {size:,} bytes; without the statistics {rest:,}, 1/{parameters / rest:.1f} of the parameters as "
        "float32",
    ]
