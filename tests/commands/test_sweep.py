"""Sweeps: the space file, and that no trial is lost when the workers are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from mrfquant.commands import sweep
from mrfquant.commands.sweep import main
from mrfquant.config.gin_files import CONFIGS
from mrfquant.config.search_space import read_space
from mrfquant.errors import BadInput, Diverged, RunFailed
from mrfquant.metric import TOP1

SHORT = ["--set", "Trainer.iterations = 200", "--set", "Trainer.eval_interval = 40"]


def space(tmp_path, text):
    path = tmp_path / "test.space"
    path.write_text(text)
    return path


def test_every_kind_of_dimension_stays_in_its_range(tmp_path):
    path = space(
        tmp_path,
        "# a comment\n\nA.x = uniform(1.0, 2.0)\nA.y = loguniform(1e-4, 1e-2)  # why\n"
        "B.n = integer(3, 5)\nB.kind = choice('soft', 0.5, True)\n",
    )
    dimensions = read_space(path)
    assert [d.binding for d in dimensions] == ["A.x", "A.y", "B.n", "B.kind"]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        trial = study.ask()
        x, y, n, kind = (d.suggest(trial) for d in dimensions)
        assert 1 <= x <= 2
        assert 1e-4 <= y <= 1e-2
        assert n in (3, 4, 5)
        assert kind in ("soft", 0.5, True)
        study.tell(trial, 0.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A.x = gaussian(0, 1)", "is not of the form"),
        ("A.x = uniform(2, 1)", "needs low < high"),
        ("A.x = uniform(1)", "needs low < high"),
        ("A.x = loguniform(0, 1)", "needs low < high"),
        ("A.x = integer(1.5, 2)", "needs low < high"),
        ("A.x = choice(1)", "needs two or more values"),
        ("A.x = choice(__import__('os').getcwd(), 2)", "is not of the form"),
        ("x = uniform(1, 2)", "is not of the form"),
        ("A.x == 3", "is not of the form"),
        ("", "varies nothing"),
    ],
)
def test_mistakes_in_a_space_are_told_with_their_line(tmp_path, line, message):
    with pytest.raises(BadInput, match=message):
        read_space(space(tmp_path, f"# first line\n{line}\n"))


def test_a_space_that_says_a_thing_twice_or_is_endless_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"varies A\.x twice"):
        read_space(space(tmp_path, "A.x = uniform(1, 2)\nA.x = uniform(2, 3)\n"))
    with pytest.raises(BadInput, match="more than 1,048,576 bytes"):
        read_space(space(tmp_path, "A.x = uniform(1, 2)\n" + "#" * 2**20 + "\nA.y = uniform(1, 2)\n"))


def test_the_papers_cross_validation_is_ready():
    ranges = {d.binding: d.values for d in read_space(CONFIGS / "spaces" / "pmf.space")}
    assert ranges["Geometric.rho"] == (1.01, 1.2)
    assert "Adam.lr" in ranges


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "0"], "--trials 0, expected at least 1"),
        (["--trials", "2", "--jobs", "0"], "--jobs 0, expected at least 1"),
        (["--trials", "2", "--space", "nowhere.space"], "there is no space file nowhere.space"),
        (["--trials", "2", "--storage", "nonsense"], "cannot open the storage nonsense"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, arguments, message):
    common = ["--gin", "gin/pmf_lenet300_digits.gin", "--space", str(CONFIGS / "spaces" / "pmf.space")]
    assert main([*common, "--out", str(tmp_path / "sweep"), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err


def test_a_sweep_of_other_settings_is_not_mixed_in(tmp_path, capsys):
    common = ["--gin", "gin/pmf_lenet300_digits.gin", "--trials", "1", "--out", str(tmp_path / "sweep"), "--smoke"]
    study = [*common, "--storage", f"sqlite:///{tmp_path / 'study.db'}"]
    first, second = tmp_path / "first.space", tmp_path / "second.space"
    first.write_text("Adam.lr = loguniform(1e-4, 1e-3)")
    second.write_text("Adam.lr = loguniform(1e-3, 1e-2)")
    made = optuna.create_study(study_name="pmf_lenet300_digits", storage=study[-1], direction="maximize")
    made.set_user_attr("asked", {"config": "", "space": first.read_text(), "smoke": True})
    assert main([*study, "--space", str(second)]) == 2
    assert "holds a sweep of other settings" in capsys.readouterr().err


def test_a_mistake_in_the_configuration_is_found_before_anything_is_made(tmp_path):
    space_file = space(tmp_path, "Adam.lr = loguniform(1e-4, 1e-3)")
    out = tmp_path / "sweep"
    assert main(["--gin", "nowhere.gin", "--space", str(space_file), "--trials", "1", "--out", str(out)]) == 2
    assert not out.exists()


def sweep_of(tmp_path, monkeypatch, failure):
    """What a worker of two trials leaves in its study where every run fails so; then with runs that end."""
    words = ["--gin", "gin/pmf_lenet300_digits.gin", "--space", str(space(tmp_path, "Adam.lr = uniform(0.1, 0.2)"))]
    words += ["--trials", "2", "--out", str(tmp_path), "--storage", f"sqlite:///{tmp_path / 'study.db'}"]
    arguments = sweep.parser().parse_args(words)
    arguments.space, folders = Path(arguments.space), []

    def launch(config, *, bindings, out, **_):
        folders.append((out, bindings))
        raise failure

    monkeypatch.setattr("mrfquant.training.launch.launch", launch)
    return arguments, folders


def test_a_full_disk_says_nothing_about_settings(tmp_path, monkeypatch):
    arguments, folders = sweep_of(tmp_path, monkeypatch, RunFailed("cannot write the checkpoint: no space left"))
    with pytest.raises(RunFailed, match="no space left"):
        sweep.work(arguments)
    study = sweep.open_study(arguments, TOP1)
    assert not sweep.ended(study)

    class Finished:
        def summary(self):
            return {"best_val_top1": 50.0}

    def launch(config, *, bindings, out, **_):
        folders.append((out, bindings))
        return Finished()

    monkeypatch.setattr("mrfquant.training.launch.launch", launch)
    assert sweep.work(arguments) == 0
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert folders[1] == folders[0]  # the same settings in the same folder


def test_settings_that_lead_nowhere_end_their_trial(tmp_path, monkeypatch):
    arguments, folders = sweep_of(tmp_path, monkeypatch, Diverged("the loss became nan"))
    assert sweep.work(arguments) == 0
    assert [trial.state.name for trial in sweep.open_study(arguments, TOP1).trials] == ["PRUNED", "PRUNED"]
    assert len(folders) == 2


@pytest.mark.slow
def test_killed_and_resumed_a_sweep_loses_no_trial(tmp_path):
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "mrfquant", "sweep", "--gin", "gin/pmf_lenet300_digits.gin", "--trials", "12"]
    command += ["--space", str(CONFIGS / "spaces" / "pmf.space"), "--jobs", "2", "--out", str(folder), *SHORT]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stdout:
        if line.startswith("[4/12]"):
            break
    children = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    for pid in [process.pid, *children]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    study = optuna.load_study(study_name="pmf_lenet300_digits", storage=f"sqlite:///{folder / 'study.db'}")
    ended = [t for t in study.trials if t.state.name in ("COMPLETE", "PRUNED")]
    assert len(ended) == 12
    for trial in study.trials:  # what a kill has cut short came again with the same settings, as far as it had them
        if trial.state.name == "FAIL":
            assert any(trial.params.items() <= t.params.items() for t in ended)
    assert "best: trial" in done.stdout
    assert (folder / "best.gin").exists()
