"""Write a folder of packed layers that mlx-lm loads, and transformers after `import mrfquant`."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor, nn

from mrfquant.language.affine import pack_words
from mrfquant.language.checkpoint import Checkpoint
from mrfquant.language.decoder import Decoder
from mrfquant.language.progress import Progress
from mrfquant.language.targets import Target
from mrfquant.storage.files import atomic

METHOD = "mrfquant"  # what config.json calls the layers
TYPES = {torch.uint32: "U32", torch.float16: "F16"}


class Stored(NamedTuple):
    """A tensor of a file, which is made when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]


def write_folder(folder: Path, checkpoint: Checkpoint, decoder: Decoder, target: Target, progress: Progress) -> Path:
    """Write folder/NAME-TYPE and return its path; what is not rounded is in float16."""
    name = checkpoint.path.resolve()
    path = folder / f"{name.stem if name.is_file() else name.name}-{target.name}"
    made = progress.scratch("model")
    config = copy.deepcopy(checkpoint.config)
    config.dtype = torch.float16
    grid = {"bits": target.label_bits, "group_size": target.group_size}
    config.quantization = grid  # for mlx-lm
    rounded = {name for index in range(len(decoder.blocks)) for name in progress.answers(index)}
    linear = [name for name, module in decoder.model.named_modules() if isinstance(module, nn.Linear)]
    left = [name for name in linear if decoder.index_of(name) is not None and f"{name}.weight" not in rounded]
    config.quantization_config = {"quant_method": METHOD, **grid, "modules_to_not_convert": left}
    config.save_pretrained(made)
    checkpoint.tokenizer().save_pretrained(made)
    with atomic(made / "model.safetensors") as file:
        write_safetensors(file, list(_tensors(decoder, target, progress)))
    shutil.rmtree(path, ignore_errors=True)
    os.replace(made, path)
    return path


def write_safetensors(file: BinaryIO, tensors: list[Stored]) -> None:
    """Write tensors one after the other, so that only one of them is in memory."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, _ in tensors:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        head[name] = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors:
        file.write(tensor.make().numpy().tobytes())


def _tensors(decoder: Decoder, target: Target, progress: Progress) -> Iterator[Stored]:
    """Yield the tensors in the order of the model's parameters."""
    answers = functools.lru_cache(1)(progress.answers)
    bits, size = target.label_bits, target.group_size

    def words(index: int, name: str) -> Tensor:
        return pack_words(answers(index)[name].labels, bits)

    def of_groups(index: int, name: str, part: str) -> Tensor:
        return getattr(answers(index)[name], part)[:, ::size].half()

    def plain(name: str) -> Tensor:
        return decoder.tensors[name]().half()

    for name in decoder.tensors:
        shape, index = decoder.shapes[name], decoder.index_of(name)
        if index is None or name not in answers(index):
            yield Stored(name, torch.float16, shape, functools.partial(plain, name))
            continue
        layer, (rows, n) = name.removesuffix("weight"), shape
        yield Stored(name, torch.uint32, (rows, n * bits // 32), functools.partial(words, index, name))
        for own, part in (("scales", "scale"), ("biases", "zero")):
            yield Stored(layer + own, torch.float16, (rows, n // size), functools.partial(of_groups, index, name, part))
