"""What `compare` reads of a run: summary, identity, records and settings."""

import json

import pytest

from mrfquant.reports.groups import check_groups, group_runs
from mrfquant.reports.page import page
from mrfquant.reports.runs import read_run
from mrfquant.reports.tables import csv_text, text_report


def read_everything(folder):
    """What `compare` does with a run."""
    told = []
    runs = [read_run(folder, told.append), read_run(folder.parent / "whole", told.append)]
    groups = group_runs(runs)
    check_groups(groups, None, told.append)
    return text_report(groups, None, 100) + csv_text(runs) + page(groups, None, told)


def records(path):
    lines = [{"iteration": i, "loss": 1 / i, "val_top1": 9.0 * i, "entropy": 0.5, "beta": 1.5**i} for i in range(1, 9)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def summary(path):
    fields = {"method": "PMF", "model": "x", "dataset": "y", "seed": 0, "bits": 1, "parameters": 9, "labelled": 9}
    fields |= {"test_top1": 90.0, "best_val_top1": 91.0, "seconds": 3.5, "steps_per_second": 9.0, "stand_in": False}
    fields |= {"metric": {"name": "top1", "title": "top-1", "higher": True, "unit": "%", "digits": 2}, "iterations": 8}
    path.write_text(json.dumps(fields))


def operative(path):
    path.write_text("# Parameters\nExperiment.seed = 0\nGeometric.rho = 1.2\nx = \\\n    [1, 2]\n")


READERS = {  # file: how a whole one is made
    "summary.json": summary,
    "identity.json": summary,
    "metrics.jsonl": records,
    "operative.gin": operative,
}


@pytest.mark.parametrize("file", READERS)
def test_a_damaged_file_of_a_run_gives_an_answer_or_a_sentence(file, fuzz, tmp_path):
    for folder in (tmp_path / "run", tmp_path / "whole"):
        folder.mkdir()
        for name in {*READERS, file} - ({"identity.json"} - {file}):
            READERS[name](folder / name)
    fuzz(file, tmp_path / "run" / file, lambda path: read_everything(path.parent))
