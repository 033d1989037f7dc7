"""The data that a packed network comes from: what it is calibrated, checked and tested with."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mrfquant.config.gin_files import named_part
from mrfquant.data import DATASETS, STAND_IN, STAND_INS, Dataset, data_root
from mrfquant.errors import BadInput
from mrfquant.objectives import CrossEntropy, Objective
from mrfquant.packing.file import PackedNetwork

CALIBRATION, BATCH = 256, 32  # training examples that ranges are found with, and how many at a time


def dataset_of(network: PackedNetwork, path: str | os.PathLike[str], root: str | Path | None = None) -> Dataset:
    """Return the data set that a file says it is for; `path` is named where the file is wrong."""
    chosen = network.origin.get("data", {"loader": network.origin.get("dataset")})
    chosen = dict(chosen) if isinstance(chosen, dict) else {}
    name = chosen.pop("loader", None)
    if not isinstance(name, str) or name not in DATASETS:
        raise BadInput(f"{path} is for the data set {name!r}, known are {', '.join(DATASETS)}")
    folder = data_root(root)
    if "file" in chosen:
        chosen["file"] = str(_in_folder(folder, str(chosen["file"]), path))
    standing_in = network.origin.get("stand_in") and name in STAND_INS
    try:
        dataset = DATASETS[name](STAND_IN if standing_in else folder, **chosen)
    except BadInput as error:
        raise BadInput(str(error).split("\n")[0]) from None  # without what gin adds
    except TypeError:
        raise BadInput(f"{path} gives settings that the data set {name} does not have") from None
    if tuple(network.arguments.get("shape", dataset.shape)) != dataset.shape:
        raise BadInput(f"{path} is for inputs of another shape than those of {name}")
    return dataset


def _in_folder(folder: Path, file: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of data that a packed file names; only what lies in the data root is opened for it."""
    found = (folder / file).resolve()
    if not found.is_relative_to(folder.resolve()) or not found.is_file():
        raise BadInput(
            f"{path} asks for the data in {file}, which is not in the data root {folder}: if you trust it, allow it "
            "with --data and the folder of that file"
        )
    return found


def objective_of(network: PackedNetwork, path: str | os.PathLike[str]) -> Objective:
    """Return what a packed network was trained for; `path` is that of its file."""
    kind, temperature = network.origin.get("objective", "CrossEntropy"), network.origin.get("temperature", 1)
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise BadInput(f"{path} gives the temperature {temperature!r}, expected a number above 0")
    return CrossEntropy(temperature=temperature) if kind == "CrossEntropy" else named_part(str(kind), Objective)()


def training_batches(dataset: Dataset) -> list[tuple[tuple[Tensor, ...], dict[str, Tensor]]]:
    """Return some inputs to train on, as arguments of a network."""
    size = min(BATCH, dataset.size("train"))
    stream = dataset.stream(size, seed=0)
    return [arguments_of(next(stream)[0]) for _ in range(-(-CALIBRATION // size))]


def arguments_of(inputs: Any) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return a batch's inputs, one or a tuple or a dict, as positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
