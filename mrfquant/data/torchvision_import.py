"""Importing torchvision where its wheel, built for CUDA, meets a CPU build of torch."""

import importlib
from types import ModuleType

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []  # the declarations last only as long as their Library object


def import_torchvision() -> ModuleType:
    """Import torchvision; where its compiled operators do not load, declare them, and data sets and transforms work."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + _SCHEMA)
    _libraries.append(library)
    return importlib.import_module("torchvision")
