"""Write a rounded language model for the program that runs it."""

from __future__ import annotations

from pathlib import Path

from mrfquant.language.checkpoint import Checkpoint
from mrfquant.language.decoder import Decoder
from mrfquant.language.gguf_file import check_gguf, write_gguf
from mrfquant.language.packed_folder import write_folder
from mrfquant.language.progress import Progress
from mrfquant.language.targets import Target

WRITERS = {"llama.cpp": write_gguf, "mlx-lm": write_folder}


def check_model(checkpoint: Checkpoint, decoder: Decoder, target: Target) -> None:
    """Raise unless the target's program can have the model."""
    if target.program == "llama.cpp":
        check_gguf(checkpoint, decoder, target)


def write_model(folder: Path, checkpoint: Checkpoint, decoder: Decoder, target: Target, progress: Progress) -> Path:
    """Write the file or folder that the target's program loads, and return its path."""
    return WRITERS[target.program](folder, checkpoint, decoder, target, progress)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
