"""The command on real runs: what it prints and writes, and how it refuses."""

import csv
import json
import shutil
import subprocess
import sys

import gin
import pytest

from mrfquant.commands import compare, run
from mrfquant.reports.runs import read_run

SHORT = [
    "--set",
    "Trainer.iterations = 40",
    "--set",
    "Trainer.eval_interval = 20",
    "--set",
    "Trainer.log_interval = 10",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs on the digits: PMF of two seeds, and the floating-point network."""
    folder = tmp_path_factory.mktemp("runs")
    for name, config, seed in [("pmf-0", "pmf", 0), ("pmf-1", "pmf", 1), ("ref-0", "ref", 0)]:
        config = f"gin/{config}_lenet300_digits.gin"
        out = ["--out", str(folder / name), "--wandb", "disabled"]
        assert run.main(["--gin", config, "--seed", str(seed), *SHORT, *out]) == 0
        gin.clear_config()
    return folder


@pytest.fixture
def command(capsys):
    """Runs the command; gives its exit status and what it printed on the two streams."""

    def command(*arguments):
        capsys.readouterr()
        status = compare.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def refused(outcome, *words):
    """The outcome is exit status 2, one sentence with these words on standard error, no traceback."""
    status, _, err = outcome
    assert status == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_real_runs_are_averaged_over_their_seeds(command, runs):
    status, out, err = command(runs)
    assert (status, err) == (0, "")
    top1 = [json.loads((runs / name / "summary.json").read_text())["test_top1"] for name in ("pmf-0", "pmf-1")]
    line = next(line for line in out.splitlines() if "PMF" in line)
    assert line.split()[1:6] == ["PMF", "lenet300", "digits", "1", "2"]
    assert f"{sum(top1) / 2:.2f} +- {abs(top1[0] - top1[1]) / 2**0.5:.2f}" in line
    assert "Experiment.inference" in out
    assert "Experiment.seed" not in out


def test_everything_asked_for_is_written(command, runs, tmp_path):
    files = ["--html", tmp_path / "r.html", "--csv", tmp_path / "new" / "r.csv", "--figures", tmp_path / "png"]
    status, _, err = command(runs / "pmf-0", runs / "ref-0", "--by", "method,Geometric.rho", *files)
    assert status == 0
    assert [line.split()[0] for line in err.splitlines()] == ["wrote"] * 3
    with open(tmp_path / "new" / "r.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["PMF", "REF"]
    assert len(list((tmp_path / "png").glob("*.png"))) == 5
    assert "PMF" in (tmp_path / "r.html").read_text()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["pmf-0", "ref-0", "smoke"])
def test_a_run_without_its_summary_is_known_by_its_log(runs, tmp_path, name):
    if name == "smoke":
        out = ["--out", str(tmp_path / "smoke"), "--wandb", "disabled"]
        assert run.main(["--gin", "gin/pmf_lenet300_digits.gin", "--smoke", *out]) == 0
    else:
        shutil.copytree(runs / name, tmp_path / name)
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    (tmp_path / name / "summary.json").unlink()
    found = read_run(tmp_path / name, pytest.fail)
    assert not found.finished
    assert found.fields.keys() >= {"method", "model", "dataset", "bits", "seed", "stand_in", "parameters", "labelled"}
    assert found.fields == {key: summary[key] for key in found.fields}


def test_a_damaged_run_is_told_and_the_others_compared(command, runs, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(runs / "pmf-0", broken)
    (broken / "summary.json").write_text('{"test_top1":')
    status, out, err = command(runs / "pmf-1", broken)
    assert status == 0
    assert err == f"warning: {broken}: summary.json is damaged: taken as unfinished\n"
    assert f"{broken}  at iteration 40 of 40" in out


def test_what_cannot_be_compared_is_refused(command, runs, tmp_path):
    refused(command(tmp_path / "nowhere"), "is not there")
    refused(command(tmp_path), "there is no run in")
    refused(command(runs, "--by", "methd"), "--by 'methd'", "did you mean method?")
    refused(command(runs, "--by", " , "), "--by names nothing")


def test_what_cannot_be_written_is_refused(command, runs, tmp_path):
    (tmp_path / "file").write_text("")
    refused(command(runs, "--figures", tmp_path / "file" / "x"), f"cannot write {tmp_path / 'file' / 'x'}")


def test_nothing_heavy_is_imported_for_help_and_tables(runs):
    code = (
        "import sys; from mrfquant.commands.compare import main, parser; parser().format_help()\n"
        "assert not {'numpy', 'matplotlib', 'torch', 'gin'} & set(sys.modules)\n"
        "main(sys.argv[1:])\n"
        "assert not {'numpy', 'matplotlib', 'torch', 'gin'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(runs)], check=True, capture_output=True)
