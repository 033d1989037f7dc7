"""Choosing a device, and making a run repeatable on it."""

from __future__ import annotations

import torch

from mrfquant.errors import BadInput


def choose_device(name: str = "auto") -> torch.device:
    """'auto' takes CUDA, then MPS, then the CPU; a device that is not there is refused."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError):
        there = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise BadInput(f"there is no device {name!r} here: choose auto or one of {', '.join(there)}") from None
    return device
