"""The tables as text, and CSV that reads back to what was written."""

import csv
import io

import pytest

from mrfquant.reports.groups import DEFAULT_BY, group_runs
from mrfquant.reports.runs import read_run
from mrfquant.reports.tables import csv_text, text_report


def read(told, *folders):
    return [read_run(folder, told.append) for folder in folders]


def test_the_table_shows_the_statistics_of_every_group(make_run, told):
    runs = read(told, make_run("a", 97.0), make_run("b", 98.0, seed=1), make_run("c", 99.0, method="REF", bits=32))
    heads, first, second = text_report(group_runs(runs), DEFAULT_BY, 120).splitlines()[:3]
    shown = [" ".join(line.split()) for line in (heads, first, second)]
    assert shown == [
        "# method model dataset bits seeds test top-1 % validation best steps/s entropy KiB seconds",
        "1 REF lenet300 mnist 32 1 99.00 91.00 99.00 20 0.000 32.0 20",
        "2 PMF lenet300 mnist 1 2 97.50 +- 0.71 91.00 98.00 20 0.000 1.0 20",
    ]
    assert heads.index("test top-1") == first.index("99.00") == second.index("97.50")
    assert len(heads) == len(first) == len(second)


def test_unfinished_runs_are_listed_with_how_far_they_are(make_run, told):
    runs = read(told, make_run("a"), make_run("b", None, seed=1))
    text = text_report(group_runs(runs), DEFAULT_BY, 120)
    assert f"unfinished, not in the means\n  {runs[1].name}  at iteration 400 of 400" in text


def test_differing_settings_have_a_column_per_group(make_run, told):
    runs = read(told, make_run("a", 99.0, rho=1.02), make_run("b", method="PGD"), make_run("c", method="PGD", rho=1.5))
    text = text_report(group_runs(runs, DEFAULT_BY), DEFAULT_BY, 120)
    lines = text.split("settings that differ\n")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["#1", "#2"],
        ["Experiment.inference", "@PMF", "@PGD"],
        ["Geometric.rho", "1.02", "1.2,", "1.5"],
    ]


def test_no_difference_no_table(make_run, told):
    assert "settings" not in text_report(group_runs(read(told, make_run("a"), make_run("b", seed=1))), DEFAULT_BY, 120)


@pytest.mark.parametrize(("groups", "settings"), [(9, 1), (9, 30), (2, 30), (30, 1)])
def test_many_groups_and_settings_stay_within_the_terminal(make_run, told, groups, settings):
    runs = read(told, *(make_run(f"r{i}", method=f"METHOD{i}", rho=f"'{'x' * 50}{i}'") for i in range(groups)))
    for number, run in enumerate(runs):
        run.settings.update({f"Part.setting{i}": f"{number}" for i in range(settings)})
    text = text_report(group_runs(runs), DEFAULT_BY, 100).split("settings that differ\n")[1]
    assert max(map(len, text.splitlines())) <= 100
    assert {word for word in text.split() if word.startswith("#")} == {f"#{i}" for i in range(1, groups + 1)}
    assert {word for word in text.split() if "Part." in word} == {f"Part.setting{i}" for i in range(settings)}
    assert f"@METHOD{groups - 1}" in text


def test_csv_reads_back_to_the_summaries_and_settings(make_run, told):
    name = 'a, "quoted" name'
    runs = read(told, make_run("a", 97.123456789, note=name), make_run("b", None, rho=1.5, seed=1))
    finished, unfinished = csv.DictReader(io.StringIO(csv_text(runs)))
    assert {k: finished[k] for k in ("run", "finished", "iteration")} == {
        "run": runs[0].name,
        "finished": "true",
        "iteration": "400",
    }
    assert float(finished["test_top1"]) == 97.123456789
    assert (finished["note"], finished["stand_in"], finished["Geometric.rho"]) == (name, "false", "1.2")
    assert (unfinished["finished"], unfinished["test_top1"], unfinished["Geometric.rho"]) == ("false", "", "1.5")
    assert (unfinished["method"], unfinished["seed"]) == ("PMF", "1")
    assert set(finished) == {"run", "finished", "iteration", *runs[0].fields, "Geometric.rho"}
