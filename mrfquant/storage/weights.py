"""Weights of trained networks: state dicts in files, and the best model of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.errors import BadInput
from mrfquant.storage.checkpoints import check_archive
from mrfquant.storage.files import read_text
from mrfquant.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor, nn


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """Read a state dict from a .pt or .safetensors file, or the best model of a run's folder; executes nothing.

    The checksums in a .pt file are compared. Files of safetensors have none: where the digest of a file lies beside it,
    as `sha256sum model.safetensors > model.safetensors.sha256` writes it, it is compared.
    """
    import torch

    state = RunFolder.open(path).best()["model"] if path.is_dir() else _read_file(path)
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise BadInput(
            f"{path} is not a state dict, names with tensors: save it with torch.save(model.state_dict(), ...)"
        )
    for name, value in state.items():
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            kind = "complex" if value.is_complex() else "quantized" if value.is_quantized else "sparse"
            raise BadInput(
                f"{path}: {name} is {kind}, expected real numbers in a dense tensor: convert the network first"
            )
    return state


def _read_file(path: Path) -> Any:
    """Return what is in a .pt or .safetensors file."""
    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise BadInput(f"{path} is not there: give a .pt or .safetensors file, or the folder of a finished run")
    _check_digest(path)
    with open(path, "rb") as file:
        archive = file.read(4) == b"PK\x03\x04"  # as torch tells them from the format before
    if archive:
        check_archive(path)
    try:
        return load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # what a file of something else raises is not documented
        reason = str(error).split("\n")[0][:100]
        raise BadInput(f"{path} cannot be read as a .pt or .safetensors file of tensors ({reason})") from None


def _check_digest(path: Path) -> None:
    """Compare a file with its digest, if that lies beside it."""
    beside = path.with_name(f"{path.name}.sha256")
    if not beside.exists():
        return
    try:
        noted = read_text(beside).split()[:1]
    except (OSError, ValueError):
        noted = []
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    if noted != [digest.hexdigest()]:
        raise BadInput(f"{path} was altered or damaged, its digest is not that of {beside.name}: copy it again")


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Put a state dict into a network; names, shapes and values that do not fit are told."""
    expected = model.state_dict()
    for name in sorted({*expected, *state}):
        ours, theirs = (tuple(s[name].shape) if name in s else None for s in (expected, state))
        if ours != theirs and not (ours == () and theirs is None):  # a counter of batch norm may be missing
            raise BadInput(
                f"{source} does not fit the network: {name} is {_shape(theirs)} in the file and {_shape(ours)} in the "
                "network; give the weights of a network of the same kind and size"
            )
        if theirs is not None and not state[name].isfinite().all():
            raise BadInput(f"{source} has values in {name} that are not finite: give the weights of a working network")
    model.load_state_dict(state, strict=False)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else "x".join(map(str, shape)) or "a number"
