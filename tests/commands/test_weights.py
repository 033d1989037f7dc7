"""`mrfquant run --weights`: a run starts from a trained network, and says what does not fit."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mrfquant.commands.run import main
from mrfquant.storage.run_folder import RunFolder

SMALL = ["--set", "LeNet300.width = 0.2", "--set", "Trainer.eval_interval = 100", "--wandb", "disabled"]
PMF = ["--gin", "gin/pmf_lenet300_digits.gin", *SMALL, "--set", "Labelling.scale = 'channel'"]
PMF += ["--set", "Experiment.learn_scale = True", "--set", "Trainer.iterations = 100"]


def call(*words):
    return main([str(word) for word in words])


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "float"
    assert (
        call("--gin", "gin/ref_lenet300_digits.gin", *SMALL, "--set", "Trainer.iterations = 300", "--out", folder) == 0
    )
    return folder


def state_of(run):
    return RunFolder.open(run).best()["model"]


def test_a_short_run_from_trained_weights_beats_one_from_scratch(trained, tmp_path):
    save_file(state_of(trained), tmp_path / "float.safetensors")
    torch.save(state_of(trained), tmp_path / "float.pt")
    found = []
    for name, source in {"run": trained, "pt": tmp_path / "float.pt", "st": tmp_path / "float.safetensors"}.items():
        assert call(*PMF, "--weights", source, "--out", tmp_path / name) == 0
        found.append(summary(tmp_path / name)["test_top1"])
    assert len(set(found)) == 1
    assert call(*PMF, "--out", tmp_path / "scratch") == 0
    assert found[0] > summary(tmp_path / "scratch")["test_top1"]


def test_a_run_is_resumed_and_packed_when_its_weights_are_gone(trained, tmp_path):
    from mrfquant.packing import pack

    torch.save(state_of(trained), tmp_path / "float.pt")
    assert call(*PMF, "--weights", tmp_path / "float.pt", "--out", tmp_path / "run") == 0
    expected, operative = summary(tmp_path / "run"), (tmp_path / "run" / "operative.gin").read_text()
    assert "float.pt" in operative
    (tmp_path / "float.pt").unlink()
    (tmp_path / "run" / "summary.json").unlink()
    assert call("--resume", tmp_path / "run", "--wandb", "disabled") == 0
    assert summary(tmp_path / "run")["test_top1"] == expected["test_top1"]
    assert (tmp_path / "run" / "operative.gin").read_text() == operative
    assert pack(tmp_path / "run").origin["method"] == "PMF"


def test_a_random_network_teaches_nobody(trained, tmp_path, capsys):
    taught = [*PMF, "--set", "Experiment.objective = @Distillation", "--set", "Trainer.iterations = 4"]
    assert call(*taught, "--out", tmp_path / "run") == 2
    assert "it is random, so give trained weights with --weights FILE" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert call(*taught, "--set", "Distillation.share = 0.0", "--out", tmp_path / "untaught") == 0
    assert call(*taught, "--smoke", "--out", tmp_path / "smoke") == 0
    assert call(*taught, "--weights", trained, "--out", tmp_path / "run") == 0
    (tmp_path / "run" / "summary.json").unlink()  # once started it goes on, the teacher is in the checkpoint
    assert call("--resume", tmp_path / "run", "--wandb", "disabled") == 0


def test_weights_that_do_not_fit_are_told(trained, tmp_path, capsys):
    state = state_of(trained)
    cases = {
        "other": ({"a": torch.zeros(2)}, "a is 2 in the file and not there in the network"),
        "shape": ({**state, "layers.1.weight": torch.zeros(3, 3)}, "layers.1.weight is 3x3 in the file and 60x784"),
        "nan": ({**state, "layers.1.bias": state["layers.1.bias"] * torch.nan}, "layers.1.bias that are not finite"),
    }
    for name, (saved, message) in cases.items():
        torch.save(saved, tmp_path / f"{name}.pt")
        assert call(*PMF, "--weights", tmp_path / f"{name}.pt", "--out", tmp_path / "run") == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert call(*PMF, "--weights", tmp_path / "nowhere", "--out", tmp_path / "run") == 2
    assert "nowhere is not there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
