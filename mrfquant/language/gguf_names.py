"""Names of tensors in GGUF files, and how llama.cpp orders their rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from mrfquant.errors import BadInput

# llama.cpp's architecture -> transformers' model type. Others have tensors that are not one to one.
ARCHITECTURES = {"llama": ("llama", "mistral"), "qwen2": ("qwen2",), "qwen3": ("qwen3",)}
PERMUTED = ("llama",)  # rotary pairs are neighbouring rows, not halves of a head


def architecture(name: str) -> str:
    """Return the name of an architecture that can be read and written."""
    if name not in ARCHITECTURES:
        raise BadInput(f"GGUF files of the architecture {name} are not supported, only of {', '.join(ARCHITECTURES)}")
    return name


def architecture_of(config: Any) -> str:
    """Return llama.cpp's name for the architecture of a model of transformers."""
    for name, types in ARCHITECTURES.items():
        if config.model_type in types:
            return name
    known = ", ".join(kind for types in ARCHITECTURES.values() for kind in types)
    raise BadInput(f"a model of the type {config.model_type} cannot be written as GGUF, only {known}: take --to mlx2")


def gguf_names(name: str, config: Any, parameters: Iterable[str]) -> dict[str, str]:
    """Return what each parameter of transformers is called in a GGUF file."""
    from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    arch = next(member for member in MODEL_ARCH if MODEL_ARCH_NAMES[member] == name)
    table = get_tensor_name_map(arch, config.num_hidden_layers)
    found = {p: table.get_name(p, try_suffixes=(".weight", ".bias")) for p in parameters}
    if unknown := [p for p, inside in found.items() if inside is None]:
        raise BadInput(f"GGUF has no name for {unknown[0]} of the architecture {name}")
    return {p: inside for p, inside in found.items() if inside is not None}


def permuted(name: str, config: Any, parameter: str, tensor: Tensor) -> Tensor:
    """Bring the rows of queries and keys into llama.cpp's order: the halves of each head interleaved."""
    heads = _heads(name, config, parameter)
    return tensor if heads is None else _by_heads(tensor, heads, 2, -1)


def unpermuted(name: str, config: Any, parameter: str, tensor: Tensor) -> Tensor:
    """Bring the rows of queries and keys back into the order of transformers."""
    heads = _heads(name, config, parameter)
    return tensor if heads is None else _by_heads(tensor, heads, -1, 2)


def _heads(name: str, config: Any, parameter: str) -> int | None:
    """Return the number of heads whose rows are in another order; None where the order is the same."""
    if name not in PERMUTED:
        return None
    if ".q_proj." in parameter:
        return config.num_attention_heads
    return config.num_key_value_heads if ".k_proj." in parameter else None


def _by_heads(tensor: Tensor, heads: int, first: int, second: int) -> Tensor:
    rest = tensor.shape[1:]
    return tensor.reshape(heads, first, second, *rest).transpose(1, 2).reshape(tensor.shape).contiguous()
