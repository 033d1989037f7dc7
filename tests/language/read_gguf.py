"""Read a GGUF file into a Llama of transformers, types that the gguf package does not know, too."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mrfquant.language.gguf_codes import BLOCKS
from mrfquant.language.gguf_names import unpermuted
from mrfquant.language.targets import TARGETS

LAYERS = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
]


def read_gguf(file: Path, to: str, model):
    """Give a Llama the weights of a file; those of the layers in its blocks have the type `to`."""
    from gguf import GGMLQuantizationType, quants

    stored, levels = tensors_of(file), np.array(TARGETS[to].levels, np.float32)
    for i, block in enumerate(model.model.layers):
        for own, name in LAYERS:
            kind, shape, data = stored[f"blk.{i}.{own}.weight"]
            weight = block.get_submodule(name).weight
            assert kind == BLOCKS[to].number
            assert shape == weight.shape
            labels, scale = BLOCKS[to].decode(data)
            values = levels[labels] * np.repeat(scale.astype(np.float32), BLOCKS[to].group, 1)
            weight.data = unpermuted("llama", model.config, f"{name}.weight", torch.from_numpy(values))
    for own, weight in (("token_embd", model.model.embed_tokens.weight), ("output", model.lm_head.weight)):
        if f"{own}.weight" in stored:
            kind, _, data = stored[f"{own}.weight"]
            weight.data = torch.from_numpy(quants.dequantize(data, GGMLQuantizationType(kind)))
    return model.eval()


def tensors_of(file: Path) -> dict[str, tuple[int, tuple[int, ...], np.ndarray]]:
    """Return type, shape and bytes of each tensor in a GGUF file, types that the gguf package does not know, too."""
    from gguf import constants, gguf_reader, quants

    class Kind(int):
        name = property(str)

    known = {member.name: Kind(member) for member in constants.GGMLQuantizationType}
    sizes = {int(kind): size for kind, size in constants.GGML_QUANT_SIZES.items()}
    sizes |= {block.number: (block.group, block.size) for block in BLOCKS.values()}
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in known.items():
            patch.setattr(Kind, name, kind, raising=False)
        patch.setattr(gguf_reader, "GGMLQuantizationType", Kind)
        for module in (gguf_reader, quants):
            patch.setattr(module, "GGML_QUANT_SIZES", sizes)
        read = gguf_reader.GGUFReader(file).tensors
    return {t.name: (int(t.tensor_type), tuple(map(int, t.shape[::-1])), np.array(t.data)) for t in read}
