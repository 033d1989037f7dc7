"""Runs are found, read as text, and what is damaged is told."""

import json

import pytest

from mrfquant.errors import BadInput
from mrfquant.reports.runs import find_runs, read_run
from mrfquant.storage.run_folder import read_settings


def test_runs_are_found_below_folders_each_once(make_run, tmp_path, told):
    first, deep = make_run("first"), make_run("sweep/deep")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "runs")  # leads back
    (first / "inside").mkdir()
    (first / "inside" / "config.gin").write_text("")  # a run's own, no run
    assert find_runs([tmp_path / "runs", first], told.append) == [first, deep]
    assert told == []


def test_folders_and_files_without_a_run_are_passed_over_with_one_warning(make_run, tmp_path, told):
    run = make_run("run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").write_text("")
    assert find_runs([run, tmp_path / "empty", tmp_path / "README.md"], told.append) == [run]
    assert told == [f"there is no run in {tmp_path / 'empty'}, {tmp_path / 'README.md'}"]


def test_no_run_at_all_is_refused(tmp_path, told):
    with pytest.raises(BadInput, match="there is no run in"):
        find_runs([tmp_path], told.append)
    with pytest.raises(BadInput, match="is not there"):
        find_runs([tmp_path / "nowhere"], told.append)


def test_a_finished_run_is_its_summary(make_run, told):
    folder = make_run("run", 97.5, seed=3)
    run = read_run(folder, told.append)
    assert run.finished
    assert run.fields == json.loads((folder / "summary.json").read_text())
    assert run.iteration == 400
    assert run.series("entropy") == ([100, 200, 300, 400], [0.75, 0.5, 0.25, 0.0])
    assert told == []


def test_an_unfinished_run_is_what_its_identity_says(make_run, told):
    run = read_run(make_run("run", None, method="PMF without auxiliary", seed=7), told.append)
    assert not run.finished
    assert run.state == "at iteration 400 of 400"
    identity = {"method": "PMF without auxiliary", "model": "lenet300", "dataset": "mnist", "seed": 7, "bits": 1}
    assert identity.items() <= run.fields.items()


def test_an_unfinished_run_without_an_identity_is_shown_all_the_same(make_run, told):
    folder = make_run("old", None)
    (folder / "identity.json").unlink()
    assert read_run(folder, told.append).state == "at iteration 400"
    assert told == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "12", '{"test_top1": 97}', '{"test_top1": "high"}', "[" * 9999]
)
def test_a_damaged_summary_is_told_and_the_run_taken_as_unfinished(make_run, told, text):
    folder = make_run("broken", method="PGD")
    (folder / "summary.json").write_text(text)
    run = read_run(folder, told.append)
    assert not run.finished
    assert run.fields["method"] == "PGD"
    assert told == [f"{folder}: summary.json is damaged: taken as unfinished"]


@pytest.mark.parametrize("line", ["{", "[1]", '{"loss": 1}', "\udcff", '{"iteration": "one"}'])
def test_damaged_metrics_are_left_out_and_told(make_run, told, line):
    folder = make_run("broken")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[2] = line
    (folder / "metrics.jsonl").write_text("\n".join(lines), errors="surrogateescape")
    assert read_run(folder, told.append).series("beta")[0] == [100, 200, 400]
    assert told == [f"{folder}: metrics.jsonl is damaged in line 3: it is left out"]


def test_a_last_line_that_a_crash_cut_short_is_dropped_silently(make_run, told):
    folder = make_run("killed", None)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-20])
    assert read_run(folder, told.append).iteration == 300
    assert told == []


def test_values_that_are_no_numbers_are_not_drawn(make_run, told):
    records = [{"iteration": i, "loss": loss} for i, loss in enumerate([1.0, float("nan"), "x", True, float("inf")])]
    assert read_run(make_run("run", records=records), told.append).series("loss") == ([0], [1.0])


def test_settings_are_read_as_text_and_nothing_is_executed(tmp_path, monkeypatch):
    (tmp_path / "attack.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "import attack\n\n# Macros:\n# ====\nwidth = 2\n\n# Parameters for Trainer:\n# ====\n"
        "Trainer.iterations = 100  \nTrainer.name = 'a = b'\n# None.\nscope/Trainer.speed = %width\n"
        "MultiStepDecay.milestones = \\\n    [1000,\n     2000]\nexec('attack')\n"
    )
    assert read_settings(text) == {
        "%width": "2",
        "Trainer.iterations": "100",
        "Trainer.name": "'a = b'",
        "scope/Trainer.speed": "%width",
        "MultiStepDecay.milestones": "[1000, 2000]",
    }


def test_a_run_without_operative_settings_says_so(make_run, told):
    folder = make_run("run")
    (folder / "operative.gin").unlink()
    assert read_run(folder, told.append).settings == {}
    assert told == [f"{folder}: it has no operative.gin that can be read: its settings are not compared"]


def test_names_are_fit_for_a_terminal(make_run, told):
    run = read_run(make_run("red\x1b[31m\nrun"), told.append)
    assert run.name.endswith("red?[31m?run")
