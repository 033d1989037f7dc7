"""Write GGUF files for llama.cpp: exactly the labels and scales that were inferred."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrfquant.errors import BadInput
from mrfquant.language.checkpoint import Checkpoint, GGUFFile
from mrfquant.language.decoder import Decoder
from mrfquant.language.gguf_codes import BLOCKS, BlockType
from mrfquant.language.gguf_names import architecture_of, gguf_names, permuted
from mrfquant.language.gguf_tokenizer import add_tokenizer
from mrfquant.language.progress import Progress
from mrfquant.language.targets import Target
from mrfquant.rounding.answers import RoundedWeight
from mrfquant.storage.files import atomic

F32, F16, Q8_0 = 0, 1, 8  # types of tensors
OWN_KEYS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


class Stored(NamedTuple):
    """A tensor of a file, which is made when its turn comes."""

    name: str
    kind: int
    shape: tuple[int, ...]
    size: int  # in bytes
    make: Callable[[], NDArray[Any]]


def write_gguf(folder: Path, checkpoint: Checkpoint, decoder: Decoder, target: Target, progress: Progress) -> Path:
    """Write folder/NAME-TYPE.gguf and return its path; embeddings and what is left out have eight bits."""
    source, blocks = checkpoint.path.resolve(), BLOCKS[target.name]
    file = folder / f"{source.stem if source.is_file() else source.name}-{target.name}.gguf"
    tensors = list(_tensors(architecture_of(checkpoint.config), checkpoint, decoder, blocks, progress))
    with atomic(file) as out:
        writer = _writer(out.name, checkpoint, blocks)
        for name, kind, shape, size, _ in tensors:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor.make())
        writer.close()
    return file


def check_gguf(checkpoint: Checkpoint, decoder: Decoder, target: Target) -> None:
    """Raise unless a GGUF file can say what there is to say of the model, before hours go into it."""
    gguf_names(architecture_of(checkpoint.config), checkpoint.config, decoder.tensors)
    _writer(os.devnull, checkpoint, BLOCKS[target.name])


def _writer(path: str, checkpoint: Checkpoint, blocks: BlockType) -> Any:
    """Return a writer that knows everything but the tensors."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture_of(checkpoint.config))
    writer.add_file_type(blocks.file_type)
    writer.add_quantization_version(2)
    if isinstance(checkpoint, GGUFFile):
        _copy_metadata(writer, checkpoint.path)
    else:
        source = checkpoint.path.resolve()
        add_metadata(writer, checkpoint.config, source.name)
        add_tokenizer(writer, source, checkpoint.config)
    return writer


def _tensors(
    arch: str, checkpoint: Checkpoint, decoder: Decoder, blocks: BlockType, progress: Progress
) -> Iterator[Stored]:
    """Yield the tensors in the order of the model's parameters."""
    stored = checkpoint.tensors if isinstance(checkpoint, GGUFFile) else {}
    answers = functools.lru_cache(1)(progress.answers)
    config = checkpoint.config
    for name, inside in gguf_names(arch, config, decoder.tensors).items():
        shape, index = decoder.shapes[name], decoder.index_of(name)
        if index is not None and name in answers(index):

            def encoded(name: str = name, index: int = index) -> NDArray[Any]:
                answer: RoundedWeight = answers(index)[name]
                tensors = (answer.labels, answer.scale[:, :: blocks.group])
                labels, scale = (permuted(arch, config, name, tensor).numpy() for tensor in tensors)
                return blocks.encode(labels, scale)

            yield Stored(inside, blocks.number, shape, math.prod(shape) // blocks.group * blocks.size, encoded)
        elif inside in stored:
            data = stored[inside].data
            yield Stored(inside, stored[inside].tensor_type, shape, data.nbytes, functools.partial(np.array, data))
        else:

            def converted(name: str = name) -> NDArray[Any]:
                return _plain(permuted(arch, config, name, decoder.tensors[name]()).numpy())[1]

            kind, size = _plain_type(shape)
            yield Stored(inside, kind, shape, size, converted)


def _plain_type(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the type of a tensor that is not rounded, and its bytes."""
    count = math.prod(shape)
    if len(shape) == 1:
        return F32, 4 * count
    return (Q8_0, count // 32 * 34) if shape[-1] % 32 == 0 else (F16, 2 * count)


def _plain(values: NDArray[np.float32]) -> tuple[int, NDArray[Any]]:
    """Return a tensor that is not rounded in its type."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    kind, _ = _plain_type(values.shape)
    return kind, quantize(np.ascontiguousarray(values), GGMLQuantizationType(kind))


def _copy_metadata(writer: Any, file: Path) -> None:
    """Copy what another file says about the model and its tokenizer."""
    from gguf import GGUFReader

    for key, field in GGUFReader(file).fields.items():
        if not key.startswith(OWN_KEYS):
            of_items = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], of_items)


def add_metadata(writer: Any, config: Any, name: str) -> None:
    """Write what llama.cpp has to know of the model."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise BadInput(f"rotary positions of the type {rope['rope_type']} are not written as GGUF yet: take --to mlx2")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
