"""What is not installed is told in one sentence, before the work, with what to type."""

import sys

import pytest

from mrfquant.__main__ import main
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput

WORDS = {
    ("sweep", "--gin", "pmf_lenet300_digits", "--space", "pmf.space", "--trials", "1"): ("sweep", "optuna", "sweep"),
    ("compare", "RUN", "--figures", "figures"): ("--figures", "matplotlib", "reports"),
    ("bench", "steps", "--png", "steps.png"): ("--png", "matplotlib", "reports"),
    ("pack", "RUN", "-o", "model.safetensors", "--onnx", "model.onnx"): ("--onnx", "onnxscript", "onnx"),
}


@pytest.mark.parametrize(("words", "told"), WORDS.items(), ids=[words[0] for words in WORDS])
def test_a_command_says_what_to_install(words, told, capsys, tmp_path, monkeypatch):
    who, package, extra = told
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert err == f"error: {who} needs {package}, which is not installed: pip install 'mrfquant[{extra}]'\n"
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_all_that_is_missing_is_named(monkeypatch):
    for module in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=r"^writing ONNX needs onnx, onnxscript, which are not installed: pip "):
        need_extra("onnx", "writing ONNX")
