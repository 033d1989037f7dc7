"""Ensembles from the learned distribution: the figures agree with their definitions, and the limits hold."""

import json

import pytest

from mrfquant.commands import eval as evaluation
from mrfquant.commands import run

SHORT = ["--set", "Trainer.iterations = 120", "--set", "Trainer.eval_interval = 40"]


def trained(folder, config, *more):
    assert run.main(["--gin", f"gin/{config}.gin", *SHORT, *more, "--out", str(folder)]) == 0
    return folder


def figures(folder, tmp_path, *more):
    assert evaluation.main([str(folder), "--json", str(tmp_path / "p.json"), *more]) == 0
    return json.loads((tmp_path / "p.json").read_text())


def test_the_rounded_network_is_the_run_s_result_and_ensembles_help_the_likelihood(tmp_path, capsys):
    folder = trained(tmp_path / "run", "pmf_lenet300_digits", "--set", "Geometric.cap = 5.0")
    found = figures(folder, tmp_path, "--samples", "1,20")
    summary = json.loads((folder / "summary.json").read_text())
    assert found["rounded"]["top1"] == pytest.approx(summary["test_top1"], abs=1e-3)
    assert found["entropy"] > 0.3
    assert found["20 sampled"]["nll"] < found["1 sampled"]["nll"]
    assert "calibration error" in capsys.readouterr().out


def test_when_every_label_is_decided_samples_are_the_rounded_network(tmp_path):
    settings = ["--set", "Geometric.interval = 1", "--set", "Geometric.cap = 1e8"]
    settings += ["--set", "Trainer.eval_interval = 1000"]  # the last network is the best one
    found = figures(trained(tmp_path / "run", "pmf_lenet300_digits", *settings), tmp_path, "--samples", "2")
    assert found["entropy"] < 1e-3
    assert found["2 sampled"]["nll"] == pytest.approx(found["rounded"]["nll"], rel=0.05)


@pytest.mark.parametrize("samples", ["0", "many", "", "1,-2"])
def test_impossible_sizes_are_refused(samples, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        evaluation.main([str(tmp_path), f"--samples={samples}"])
    assert "expected whole numbers above 0" in capsys.readouterr().err


def test_what_has_no_distribution_is_refused(tmp_path, capsys):
    assert evaluation.main([str(trained(tmp_path / "ref", "ref_lenet300_digits"))]) == 2
    assert "is not quantized" in capsys.readouterr().err
    picm = str(trained(tmp_path / "picm", "picm_lenet300_digits"))
    assert evaluation.main([picm, "--samples", "1"]) == 0
    assert evaluation.main([picm, "--packed"]) == 2
    assert "is a run: --packed and --activations are for what mrfquant pack makes of it" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for words in ([str(tmp_path)], [str(tmp_path / "file"), "--samples", "1"]):
        assert evaluation.main(words) == 2
