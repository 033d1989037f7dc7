"""The command killed at random moments, as a process."""

import random
import signal
import subprocess
import sys
import time

import pytest

from tests.language.conftest import SIZES

KILLS = 10


@pytest.mark.slow
def test_ten_kills_at_random_moments_and_the_same_command_give_the_same_bytes(transformers, save_model, text, tmp_path):
    pytest.importorskip("gguf")
    sizes = SIZES | {"num_hidden_layers": 12, "intermediate_size": 256}
    folder = save_model(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
    command = [sys.executable, "-m", "mrfquant", "round", "--model", str(folder), "--text", str(text), "--to", "q2_0"]

    def begin(out):
        process = subprocess.Popen([*command, "--windows", "2", "1", "--out", str(out)], stdout=subprocess.DEVNULL)
        while process.poll() is None and not (out / "progress").exists():
            time.sleep(0.01)
        return process

    whole = begin(tmp_path / "whole")
    began = time.perf_counter()
    assert whole.wait() == 0
    seconds, draw, killed = time.perf_counter() - began, random.Random(0), 0
    for _ in range(KILLS):
        process = begin(tmp_path / "killed")
        time.sleep(draw.uniform(0, seconds / KILLS * 1.5))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed == KILLS
    assert begin(tmp_path / "killed").wait() == 0
    files = [(tmp_path / name / f"{folder.name}-q2_0.gguf").read_bytes() for name in ("whole", "killed")]
    assert files[0] == files[1]
