"""A decoder one block at a time, against the same model whole."""

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.language.checkpoint import open_checkpoint
from mrfquant.language.decoder import Decoder
from tests.language.conftest import SIZES

CONFIGS = {
    "LlamaConfig": {"tie_word_embeddings": False},
    "Qwen2Config": {},
    "Qwen3Config": {"head_dim": 16},
    "Gemma2Config": {"head_dim": 16, "sliding_window": 8},
    "GPT2Config": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "OPTConfig": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "PhiConfig": {},
    "MixtralConfig": {"num_local_experts": 4},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_one_after_the_other_give_the_logits_of_the_whole_model(name, transformers, save_model):
    folder = save_model(getattr(transformers, name)(**SIZES | CONFIGS[name], pad_token_id=0))
    decoder = Decoder(open_checkpoint(folder))
    tokens = torch.randint(320, (2, 24), generator=torch.Generator().manual_seed(0))
    hidden = decoder.embed(tokens)
    for index in range(len(decoder.blocks)):
        block = decoder.block(index)
        hidden = torch.cat([decoder.call(block, index, window) for window in hidden.split(1)])
    found = torch.cat([decoder.logits(tokens[i : i + 1], hidden[i : i + 1]) for i in range(2)])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(tokens).logits
    assert torch.allclose(found, expected, atol=1e-4)


def test_blocks_take_memory_only_while_they_are_computed(llama):
    decoder = Decoder(open_checkpoint(llama))
    decoder.block(0)
    assert all(p.is_meta for p in decoder.blocks.parameters())
    assert not decoder.model.get_input_embeddings().weight.is_meta


def test_what_is_no_model_is_told(tmp_path):
    with pytest.raises(BadInput, match="is no language model"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadInput, match=r"has no model\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="cannot be read"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=r"model\.gguf cannot be read"):
        open_checkpoint(tmp_path / "model.gguf")
