"""Folders of packed layers, in the programs that load them: transformers and mlx-lm."""

import math
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from mrfquant.language import round_language_model
from mrfquant.language.affine import AffineLinear
from tests.language.conftest import FEW, SIZES

CONFIGS = {
    "LlamaConfig": {"tie_word_embeddings": True},
    "GPT2Config": {"n_embd": 64, "n_layer": 2, "n_head": 4},  # transposed matrices
    "MixtralConfig": {"num_local_experts": 4, "num_experts_per_tok": 1},  # matrices in one tensor
}


@pytest.fixture(scope="module", params=CONFIGS)
def done(request, transformers, save_model, text, tmp_path_factory):
    config = getattr(transformers, request.param)(**SIZES | CONFIGS[request.param], pad_token_id=0)
    out = tmp_path_factory.mktemp("out") / "small"
    return round_language_model(save_model(config), text, out, **FEW | {"to": "mlx2", "windows": 4})


@pytest.fixture(scope="module")
def loaded(done, transformers):
    return transformers.AutoModelForCausalLM.from_pretrained(done.file, dtype=torch.float32).eval()


def matrices(model):
    return [m for m in model.modules() if isinstance(m, (torch.nn.Linear, AffineLinear)) and m.in_features > 4]


def test_transformers_runs_packed_layers_with_the_perplexity_of_the_report(done, loaded, text, transformers):
    tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained(done.file)(text.read_text()).input_ids)[128:192]
    with torch.no_grad():
        losses = [functional.cross_entropy(loaded(w[None]).logits[0, :-1], w[1:]) for w in tokens.split(32)]
    assert done.perplexity == pytest.approx(math.exp(torch.stack(losses).mean()), rel=5e-3)  # the rest is in float16
    packed = [m for m in matrices(loaded) if isinstance(m, AffineLinear)]
    assert sum(m.in_features * m.out_features for m in packed) == done.weights
    assert len(packed) == len(matrices(loaded)) - 1  # the head


def test_save_pretrained_writes_the_packed_layers_again(done, transformers, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(done.file)
    model.save_pretrained(tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (done.file, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8)) for name in before)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("done", ["LlamaConfig"], indirect=True)
def test_mlx_lm_computes_the_same_logits(done, loaded):
    load = pytest.importorskip("mlx_lm", reason="pip install mlx-lm 'mlx[cpu]'").load
    mx = pytest.importorskip("mlx.core")
    model, _ = load(str(done.file))
    model.set_dtype(mx.float32)
    tokens = np.arange(2, 22)[None]
    with torch.no_grad():
        expected = loaded(torch.from_numpy(tokens)).logits.numpy()
    found = np.array(model(mx.array(tokens)))
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("done", ["MixtralConfig"], indirect=True)
def test_experts_that_saw_few_tokens_are_named(done):
    assert any(re.search(r"experts\.\w+\.\d\.weight: .* inputs? ", note) for note in done.notes)
