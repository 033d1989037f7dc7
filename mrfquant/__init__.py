"""mrfquant: quantizing neural networks by inference in Markov random fields."""

from __future__ import annotations

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Import what is public when it is first asked for: importing mrfquant by itself does not import torch."""
    if name == "load":
        from mrfquant.packing import load

        return load
    raise AttributeError(f"module 'mrfquant' has no attribute {name!r}")
