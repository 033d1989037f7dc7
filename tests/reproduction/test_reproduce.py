"""Reproducing tables: the right cells, the paper's figures, nothing run twice, interruption survived."""

import csv
import json
import multiprocessing
import shutil
import signal
import statistics
import time
from pathlib import Path

import pytest

from mrfquant import compute
from mrfquant.commands.reproduce import chosen, main, parser
from mrfquant.config.gin_files import CONFIGS
from mrfquant.reproduction import TABLES, Campaign, Cell, render
from mrfquant.storage.run_folder import RunFolder
from mrfquant.training.launch import launch

PAPER = Path(__file__).parents[3] / "shared" / "paper"


@pytest.fixture
def quick_cells(monkeypatch):
    """Their processes are copies of this one: no seconds of imports."""
    monkeypatch.setattr(compute, "get_context", lambda _: multiprocessing.get_context("fork"))


def figures(file):
    return list(csv.DictReader((PAPER / file).open())) if (PAPER / file).exists() else []


@pytest.mark.parametrize("table", TABLES)
def test_every_cell_has_its_config(table):
    for cell in TABLES[table]:
        assert any((CONFIGS / cell.file(scale)).exists() for scale in ("paper", "medium")), cell.config


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's tables are not beside the project")
def test_the_papers_figures_are_those_of_its_tables():
    cells = [cell for table in TABLES.values() for cell in table if cell.paper]
    found = {(cell.dataset, cell.model, cell.column): cell.paper for cell in cells}
    expected = {}
    for row in figures("results.csv"):
        for column in ("REF", "BC", "PQ", "PICM", "PGD", "PMF", "PMF_retuned"):
            if row[column]:
                expected[row["dataset"], row["model"], column.replace("_", " ")] = float(row[column])
    for row in figures("results_no_auxiliary.csv"):
        expected[row["dataset"], row["model"], "PMF without auxiliary"] = float(row["PMF_without_auxiliary"])
    for row in figures("results_two_bit.csv"):
        expected[row["dataset"], row["model"], "PMF 2-bit"] = float(row["PMF"])
    assert found == expected


def test_the_table_shows_mean_spread_paper_and_difference():
    pmf, md = Cell("mnist", "lenet300", "PMF", "pmf", paper=98.24), Cell("mnist", "lenet300", "MD", "md")
    other = Cell("mnist", "lenet5", "PMF", "pmf5", paper=99.44)
    ours = [98.0, 98.2, 98.7]
    text = render([pmf, md, other], {pmf: ours, md: [97.5]})
    mean, spread = statistics.mean(ours), statistics.stdev(ours)
    assert f"{mean:.2f} ± {spread:.2f} (3 seeds; paper 98.24, {mean - 98.24:+.2f})" in text
    assert "| 97.50 |" in text
    assert "- (paper 99.44)" in text


def finished(folder, accuracy):
    folder.mkdir(parents=True)
    (folder / "config.gin").write_text("")
    (folder / "summary.json").write_text(
        json.dumps({"test_top1": accuracy, "best_val_top1": 0, "seconds": 1, "steps_per_second": 1})
    )


def test_cells_that_are_done_are_only_read(tmp_path, capsys):
    cells = [c for c in TABLES["results"] if c.column in ("PMF", "BC") and c.model == "lenet300"]
    campaign = Campaign(cells, 2, "paper", tmp_path)
    for cell in cells:
        for seed in range(2):
            finished(campaign.folder(cell, seed), 90.0 + seed)
    arguments = ["results", "--rows", "lenet300", "--methods", "pmf,bc", "--seeds", "2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "4 runs, 4 done already" in out
    assert "90.50 ± 0.71" in out


def test_further_seeds_are_shown_and_not_counted(tmp_path, capsys):
    cells = [c for c in TABLES["results"] if c.column in ("PMF", "BC") and c.model == "lenet300"]
    campaign = Campaign(cells, 1, "paper", tmp_path)
    for cell in cells:
        for seed in (0, 1, 2, 4) if cell.column == "PMF" else (0,):
            finished(campaign.folder(cell, seed), 90.0 + seed)
    assert main(["results", "--rows", "lenet300", "--methods", "pmf,bc", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 2 done already" in out
    assert "91.00 ± 1.00 (3 seeds; paper" in out  # seed 4 does not follow on
    assert "90.00 (paper" in out


def test_a_damaged_result_is_told(tmp_path, capsys):
    (cell,) = [c for c in TABLES["results"] if c.column == "PMF" and c.model == "lenet300"]
    folder = Campaign([cell], 1, "paper", tmp_path).folder(cell, 0)
    finished(folder, 90.0)
    (folder / "summary.json").write_text('{"test_top1": 9')
    assert main(["results", "--rows", "lenet300", "--methods", "pmf", "--out", str(tmp_path)]) == 2
    assert "summary.json is damaged: delete it and resume the run" in capsys.readouterr().err


def test_missing_cells_are_run_and_the_table_says_stand_in(quick_cells, tmp_path, capsys):
    arguments = ["results", "--rows", "lenet300", "--methods", "PMF", "--out", str(tmp_path), "--smoke"]
    assert main([*arguments, "--markdown", str(tmp_path / "table.md")]) == 0
    out = capsys.readouterr().out
    assert "[1/1] pmf_lenet300_mnist seed 0:" in out
    assert "STAND-IN DATA" in out
    assert (tmp_path / "table.md").read_text().startswith("| data, network | PMF |")


def test_stand_in_runs_never_count_as_real_ones(tmp_path):
    (cell,) = [c for c in TABLES["results"] if c.column == "PMF" and c.model == "lenet300"]
    smoke = Campaign([cell], 1, "paper", tmp_path, smoke=True)
    finished(smoke.folder(cell, 0), 100.0)
    assert smoke.accuracies() == {cell: [100.0]}
    assert Campaign([cell], 1, "paper", tmp_path).accuracies() == {}


def test_settings_reach_every_new_run(quick_cells, tmp_path):
    (cell,) = [c for c in TABLES["results"] if c.column == "PMF" and c.model == "lenet300"]
    campaign = Campaign([cell], 1, "paper", tmp_path, settings=["Trainer.log_interval = 7"], smoke=True)
    (outcome,) = campaign.run()
    assert outcome.accuracy is not None, outcome.message
    assert "Trainer.log_interval = 7" in (campaign.folder(cell, 0) / "operative.gin").read_text()


def test_a_failing_cell_is_told_and_the_others_go_on(tmp_path, capsys):
    arguments = ["results", "--rows", "lenet300", "--methods", "PMF", "--device", "cuda:7", "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert "failed: there is no device 'cuda:7'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["results", "--rows", "imagenet"], "--rows 'imagenet' is not in this table"),
        (["results", "--methods", "GPTQ"], "--methods 'gptq' is not in this table"),
        (["results", "--out", "README.md"], "--out README.md is a file: give a folder"),
        (["results", "--seeds", "0"], "--seeds 0, expected at least 1"),
        (["results", "--jobs", "-2"], "--jobs -2, expected at least 1"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_interrupted_it_saves_the_cell_and_goes_on_inside_it(python, tmp_path):
    """A cell cut short by SIGTERM has a checkpoint, and is resumed, not started again."""
    cell = ["results", "--rows", "lenet300", "--methods", "REF", "--out", str(tmp_path), "--smoke"]
    folder = tmp_path / "paper-smoke" / "ref_lenet300_mnist-seed0"
    process = python.start("-m", "mrfquant", "reproduce", *cell)
    deadline = time.monotonic() + 60
    while not (folder / "log.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait().returncode in (0, 143)  # 0 when the 20 iterations were over first
    log = (folder / "log.txt").read_text()
    assert "stopped at iteration" in log or "test top-1" in log
    done = python.run("-m", "mrfquant", "reproduce", *cell)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "summary.json").read_text())["iterations"] == 20


def test_cells_that_start_from_trained_weights_ask_for_them(tmp_path, capsys):
    arguments = ["resnet20", "--out", str(tmp_path), "--methods", "PMF ternary"]
    assert main(arguments) == 2
    assert "resnet20, resnet44 that are missing start from trained weights: give --weights" in capsys.readouterr().err
    assert main([*arguments, "--weights", "w.pt"]) == 2
    assert "choose with --rows" in capsys.readouterr().err
    assert main([*arguments, "--weights", "w.pt", "--rows", "resnet44"]) == 2
    assert "--weights w.pt is not there" in capsys.readouterr().err


def test_what_is_done_is_shown_without_the_weights_that_the_rest_needs(tmp_path, capsys):
    done = tmp_path / "paper" / "pmf_ternary_resnet20_cifar10-seed0"
    shutil.copytree(Path("runs/baselines/paper") / done.name, done)
    assert main(["resnet20", "--out", str(tmp_path)]) == 2
    accuracy = json.loads((done / "summary.json").read_text())["test_top1"]
    assert f"| {accuracy:.2f} |" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["resnet20", "results --rows cifar10 --scale medium", "best --scale medium"])
def test_the_runs_of_a_documented_table_come_with_the_project(arguments):
    arguments = parser().parse_args(arguments.split())
    campaign = Campaign(chosen(arguments), 1, arguments.scale, Path("runs/baselines"))
    assert campaign.missing() == []


def test_runs_that_another_process_is_at_work_on_are_left_to_it(quick_cells, tmp_path, capsys):
    arguments = ["results", "--rows", "lenet300", "--methods", "PMF", "--out", str(tmp_path), "--smoke"]
    assert main(arguments) == 0
    folder = RunFolder(tmp_path / "paper-smoke" / "pmf_lenet300_mnist-seed0")
    (folder.path / "summary.json").unlink()
    capsys.readouterr()
    with folder.owned():
        assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "[1/1] pmf_lenet300_mnist seed 0: another process is at work on it" in out
    assert "1 runs are done by other processes" in out
    assert folder.summary() is None


def test_a_run_that_another_process_ends_meanwhile_is_not_repeated(quick_cells, tmp_path, monkeypatch):
    assert main(["results", "--rows", "lenet300", "--methods", "PMF", "--out", str(tmp_path), "--smoke"]) == 0
    folder = RunFolder(tmp_path / "paper-smoke" / "pmf_lenet300_mnist-seed0")
    summary, log = folder.path / "summary.json", (folder.path / "log.txt").read_text()
    text, owned = summary.read_text(), RunFolder.owned
    summary.unlink()
    monkeypatch.setattr(RunFolder, "owned", lambda self: (summary.write_text(text), owned(self))[1])
    assert launch(None, out=folder.path, resume=True).summary() == json.loads(text)
    assert (folder.path / "log.txt").read_text() == log


@pytest.mark.slow
def test_processes_on_one_folder_divide_its_runs(python, tmp_path):
    """As machines that share a folder do: no run is done twice, and a repeated command has the whole table."""
    cells = ["results", "--rows", "lenet300", "--methods", "REF,PMF,BC", "--out", str(tmp_path), "--smoke"]
    started = [python.start("-m", "mrfquant", "reproduce", *cells) for _ in range(2)]
    for process in started:
        done = process.wait(300)
        assert done.returncode == 0, done.stdout + done.stderr
    folders = [path.parent for path in tmp_path.glob("paper-smoke/*/summary.json")]
    assert len(folders) == 3
    for folder in folders:
        log = (folder / "log.txt").read_text()
        assert log.count("results in") == 1, log
        records = [json.loads(line)["iteration"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert records == sorted(set(records))
    assert "3 runs, 3 done already" in python.run("-m", "mrfquant", "reproduce", *cells).stdout


def test_folders_of_cells_are_named_by_their_settings(tmp_path):
    campaign = Campaign(TABLES["rho"], 1, "paper", tmp_path)
    assert campaign.folder(TABLES["rho"][1], 0).name == "pmf_lenet300_mnist-rho1.02-seed0"
