"""The paper's table with ours below it: every size that there is, with its budget."""

import json

import pytest

from mrfquant.commands.reproduce import chosen, main, parser
from mrfquant.config.gin_files import CONFIGS
from mrfquant.reproduction import TABLES, Campaign, overview

RESNET18 = ("cifar10", "resnet18")


def finished(out, scale, column, accuracies, seconds=3600.0, **fields):
    (cell,) = [c for c in TABLES["results"] if (c.dataset, c.model, c.column) == (*RESNET18, column)]
    for seed, accuracy in enumerate(accuracies):
        folder = Campaign([cell], 1, scale, out).folder(cell, seed)
        folder.mkdir(parents=True)
        (folder / "operative.gin").write_text("Trainer.batch_size = 128\n")
        summary = {"test_top1": accuracy, "best_val_top1": 0, "seconds": seconds, "steps_per_second": 1, **fields}
        (folder / "summary.json").write_text(json.dumps({"iterations": 7020, **summary}))


def test_every_size_has_a_line_below_the_papers(tmp_path):
    finished(tmp_path, "medium", "PMF", [84.0, 85.0], seconds=1800.0)
    finished(tmp_path, "medium", "BC", [74.0])
    finished(tmp_path, "full", "PMF", [91.5], seconds=9000.0, threads=2)
    paper, full, medium = (line for line in overview(tmp_path) if (line.dataset, line.model) == RESNET18)
    assert (paper.epochs, paper.accuracies["PMF"], paper.accuracies["other settings"]) == (285, [92.73], [93.24])
    assert (paper.accuracies["PQ as published"], "PQ" in paper.accuracies) == ([92.32], False)
    assert (full.size, full.epochs, full.hours, full.accuracies) == ("full size", 20, [5.0], {"PMF": [91.5]})
    assert medium.accuracies == {"PMF": [84.0, 85.0], "BC": [74.0]}
    assert sorted(medium.hours) == [0.5, 0.5, 1.0]


def test_the_command_prints_them_and_draws_those_with_runs(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs the reports extra")
    finished(tmp_path, "medium", "PMF", [84.0, 85.0], seconds=1800.0)
    assert main(["paper", "--out", str(tmp_path), "--png", str(tmp_path / "p.png")]) == 0
    out = capsys.readouterr().out
    assert "| resnet18, cifar10 | paper | 285 |  | 94.64 | 91.60 | - | 92.32 |" in out
    assert "|  | a quarter of the width | 20 | 0.5 | - | - | - | - | - | - | 84.50 ± 0.71 (2) | - |" in out
    assert "| resnet18, tinyimagenet | paper | 128 |" in out
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_without_runs_it_says_where_it_looked(tmp_path, capsys):
    assert main(["paper", "--out", str(tmp_path)]) == 2
    assert f"there is no finished run of the paper's table below {tmp_path}" in capsys.readouterr().err
    assert main(["rho", "--png", str(tmp_path / "p.png"), "--out", str(tmp_path)]) == 2
    assert "--png draws the table paper, not rho" in capsys.readouterr().err


def test_the_cells_of_full_size_are_the_files_of_its_folder():
    cells = chosen(parser().parse_args(["results", "--scale", "full"]))
    assert {cell.config for cell in cells} == {path.stem for path in (CONFIGS / "full").glob("*.gin")}
