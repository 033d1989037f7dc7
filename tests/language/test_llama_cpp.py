"""GGUF files in llama.cpp itself."""

import numpy as np
import pytest
import torch

from mrfquant.language import round_language_model
from mrfquant.language.gguf_codes import BLOCKS
from tests.language.conftest import FEW, SIZES
from tests.language.read_gguf import read_gguf


@pytest.mark.parametrize("to", ["q2_0", "q1_0", "tq2_0", "q4_0"])
def test_llama_cpp_computes_the_logits_of_the_weights_that_were_inferred(to, transformers, save_model, text, tmp_path):
    program = pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    width = BLOCKS[to].group
    sizes = SIZES | {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1}
    folder = save_model(transformers.LlamaConfig(**sizes, tie_word_embeddings=False))
    done = round_language_model(folder, text, tmp_path / "out", **FEW | {"to": to})
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(text.read_text()[:80]).input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = read_gguf(done.file, to, model)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, -1].log_softmax(0).numpy()

    params = program.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = str(done.file), 128, 1, 1
    params.warmup = False
    plain = tokens[0]  # it gives no probabilities beside parts of letters: make it say this one
    asked = {"prompt": tokens, "n_predict": 1, "n_probs": 320, "temperature": 0.0, "logit_bias": [[plain, 100.0]]}
    answer = program.Server(params).handle_completions(asked)
    found = np.full(320, np.nan)
    for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        found[entry["id"]] = entry["logprob"]
    away = np.sqrt(np.square(found - expected).mean()) / expected.std()
    assert away < 0.1  # it multiplies by activations of eight bits
