"""Rounding a language model by blocks: the files, and what a kill leaves."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from mrfquant.commands import round as command
from mrfquant.errors import BadInput
from mrfquant.language import round_language_model
from mrfquant.language.gguf_names import permuted, unpermuted
from tests.language.conftest import FEW
from tests.language.read_gguf import read_gguf


def run(llama: Path, text: Path, out: Path, **settings):
    return round_language_model(llama, text, out, **{"to": "q2_0", **FEW, **settings})


@pytest.fixture(scope="module")
def done(llama, text, tmp_path_factory):
    pytest.importorskip("gguf")
    return run(llama, text, tmp_path_factory.mktemp("out") / "q2")


def test_the_float_perplexity_is_that_of_the_whole_model(done, llama, text, transformers):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained(llama)(text.read_text()).input_ids)[64:128]
    with torch.no_grad():
        losses = [functional.cross_entropy(model(w[None]).logits[0, :-1], w[1:]) for w in tokens.split(32)]
    assert done.float_perplexity == pytest.approx(math.exp(torch.stack(losses).mean()), rel=1e-4)


def test_the_file_holds_weights_with_the_perplexity_of_the_report(done, llama, text, transformers):
    model = read_gguf(done.file, "q2_0", transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32))
    tokens = torch.tensor(transformers.AutoTokenizer.from_pretrained(llama)(text.read_text()).input_ids)[64:128]
    with torch.no_grad():
        losses = [functional.cross_entropy(model(w[None]).logits[0, :-1], w[1:]) for w in tokens.split(32)]
    assert done.perplexity == pytest.approx(math.exp(torch.stack(losses).mean()), rel=1e-3)  # the rest has 8 bits


def test_rows_are_brought_into_the_other_order_and_back(transformers):
    config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
    for name, rows in (("self_attn.q_proj.weight", 16), ("self_attn.k_proj.weight", 8)):
        given = torch.arange(rows * 3.0).view(rows, 3)
        moved = permuted("llama", config, name, given)
        assert moved[:4, 0].tolist() == [0, 12, 3, 15]  # a head of 8 rows: its halves interleaved
        assert torch.equal(unpermuted("llama", config, name, moved), given)


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_killed_call_goes_on_and_ends_with_the_same_bytes(stop, done, llama, text, tmp_path, monkeypatch):
    """Killed before its n-th file is put into its place, then before its n + 1st, and so on."""
    import os

    class Killed(BaseException):
        pass

    replace, left = os.replace, [stop]

    def dying(*args):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        replace(*args)

    monkeypatch.setattr(os, "replace", dying)
    result = None
    for again in range(40):
        left[0] = stop + again
        try:
            result = run(llama, text, tmp_path / "out")
            break
        except Killed:
            continue
    monkeypatch.undo()
    assert result is not None
    assert result.file.read_bytes() == done.file.read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [result.file.name, "report.json"]


def test_a_finished_folder_is_reported_again_and_not_written_over(done, llama, text):
    before = done.file.stat().st_mtime_ns
    again = run(llama, text, done.file.parent)
    assert again.perplexity == done.perplexity
    assert again.blocks == done.blocks
    assert done.file.stat().st_mtime_ns == before
    with pytest.raises(BadInput, match="belongs to another call"):
        run(llama, text, done.file.parent, solver="nearest")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"to": "q3"}, "there is no type q3"),
        ({"to": "q1_0"}, "keeps groups of 128 weights"),
        ({"windows": 10**6}, "give a longer text, or fewer --windows"),
        ({"windows": 0}, "give at least one"),
        ({"exclude": ["nothing*"]}, "'nothing\\*' matches no weight"),
    ],
)
def test_impossible_calls_end_in_a_sentence_and_leave_nothing(settings, told, llama, text, tmp_path):
    with pytest.raises(BadInput, match=told):
        run(llama, text, tmp_path / "out", **settings)


def test_what_a_gguf_file_cannot_say_is_told_before_anything_is_computed(transformers, save_model, text, tmp_path):
    model = save_model(transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=320))
    with pytest.raises(BadInput, match=r"a model of the type gpt2 cannot be written as GGUF, .*: take --to mlx2"):
        run(model, text, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_rounds_a_folder(llama, text, tmp_path, capsys):
    given = ["--model", str(llama), "--text", str(text), "--to", "q4_0", "--solver", "nearest", "--windows", "1", "1"]
    given += ["--out", str(tmp_path / "out"), "--html", str(tmp_path / "report.html")]
    assert command.main(given) == 0
    printed = capsys.readouterr().out
    assert "block   2 of 2" in printed
    assert "llama-q4_0.gguf" in printed
    page = (tmp_path / "report.html").read_text()
    assert page.count("<rect") == 14 + 2  # layers and blocks
    assert "model.layers.1.mlp.down_proj.weight" in page
    assert "<script" not in page
    with pytest.raises(SystemExit):
        command.main([*given, "--bits", "3"])
    assert "--bits does not go with --model" in capsys.readouterr().err
