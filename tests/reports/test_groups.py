"""Statistics of groups and the settings that differ, against numbers computed by hand or by the statistics module."""

import statistics

import pytest

from mrfquant.errors import BadInput
from mrfquant.reports.groups import check_groups, differing_settings, group_runs
from mrfquant.reports.runs import read_run


@pytest.fixture
def groups(make_run, told):
    """Makes run folders, each from a dict, and groups them."""

    def groups(*runs, by=None):
        read = [read_run(make_run(f"run{i}", **run), told.append) for i, run in enumerate(runs)]
        return group_runs(read, by)

    return groups


def test_mean_spread_and_best_of_seeds(groups):
    top1 = [97.0, 97.5, 98.9]
    (group,) = groups(*({"top1": t, "seed": i, "seconds": 10.0 * i} for i, t in enumerate(top1)))
    assert group.seeds == 3
    assert group.mean("test_top1") == pytest.approx(statistics.mean(top1))
    assert group.spread("test_top1") == pytest.approx(statistics.stdev(top1))
    assert group.spread("test_top1") == pytest.approx(((0.8**2 + 0.3**2 + 1.1**2) / 2) ** 0.5)
    assert group.best() == 98.9
    assert group.mean("seconds") == 10.0
    assert group.entropy() == 0.0


def test_one_seed_has_no_spread(groups):
    (group,) = groups({"top1": 90.0})
    assert (group.mean("test_top1"), group.spread("test_top1")) == (90.0, None)


def test_unfinished_runs_are_in_no_mean(groups):
    (group,) = groups({"top1": 90.0}, {"top1": None, "seed": 1})
    assert (len(group.runs), group.seeds, group.mean("test_top1")) == (2, 1, 90.0)
    (group,) = groups({"top1": None, "method": "PGD", "seed": 2}, by=["seed"])
    assert (group.seeds, group.mean("test_top1"), group.entropy()) == (0, None, None)


def test_size_counts_bits_of_labelled_and_32_of_other_parameters(groups):
    sizes = {g.key[0]: g.kib() for g in groups({}, {"method": "REF", "bits": 32, "labelled": 0})}
    assert sizes == {"PMF": 8192 / 8 / 1024, "REF": 8192 * 4 / 1024}
    (group,) = groups({"bits": 2, "labelled": 4096, "seed": 5}, by=["seed"])
    assert group.kib() == (4096 * 2 + 4096 * 32) / 8 / 1024


def test_the_best_group_is_first_and_one_without_results_last(groups):
    found = groups({"top1": 97.0}, {"method": "REF", "top1": 98.0}, {"method": "BC", "top1": None})
    assert [group.label for group in found] == ["REF", "PMF", "BC"]


def test_groups_are_ranked_by_validation_and_not_by_the_test_that_reports_them(groups):
    found = groups({"top1": 98.0, "best_val_top1": 90.0, "rho": 1.1}, {"top1": 97.0, "best_val_top1": 95.0, "rho": 1.2})
    assert [group.mean("test_top1") for group in found] == [97.0, 98.0]
    loss = {"name": "loss", "title": "loss", "higher": False, "unit": "", "digits": 4}
    fields = [{"metric": loss, "test_loss": 3 - v, "best_val_loss": v, "rho": v} for v in (2.0, 1.0)]
    assert [group.mean("best_val_loss") for group in groups(*fields)] == [1.0, 2.0]


def test_labels_tell_what_differs(groups):
    found = groups({"bits": 1}, {"bits": 2, "rho": 1.02}, by=["method", "bits", "Geometric.rho"])
    assert {group.label for group in found} == {"1 bit rho 1.2", "2 bits rho 1.02"}


def test_runs_are_grouped_by_fields_settings_and_folders(groups):
    runs = [{"rho": 1.02}, {"rho": 1.02, "seed": 1}, {"rho": 1.5}]
    assert sorted(g.key for g in groups(*runs, by=["Geometric.rho"])) == [("1.02",), ("1.5",)]


def test_grouping_by_run_keeps_every_run_apart(groups):
    found = groups({}, {}, by=["run"])
    assert sorted(group.label for group in found) == ["run0", "run1"]
    assert sorted(group.key[0] for group in found) == sorted(group.runs[0].name for group in found)


def test_a_name_that_no_run_has_is_refused_with_the_nearest(groups):
    with pytest.raises(BadInput, match=r"--by 'Geometric\.ro': no run has it; did you mean Geometric\.rho\?"):
        groups({}, by=["Geometric.ro"])


def test_a_field_that_only_some_runs_have_makes_its_own_group(groups, make_run, told):
    assert {g.key for g in groups({"extra": 1}, {"seed": 1}, by=["extra"])} == {("1",), ("-",)}


def test_stand_in_data_are_never_averaged_with_others(groups, told):
    found = groups({"top1": 90.0}, {"top1": 10.0, "stand_in": True}, by=["method"])
    assert [g.label for g in found] == ["PMF", "PMF (stand-in data)"]
    check_groups(found, ["method"], told.append)
    assert told == ["PMF (stand-in data): its figures mean nothing"]


def test_settings_that_differ_leave_out_the_seed_and_what_is_equal(groups):
    found = groups({"rho": 1.02, "seed": 0}, {"rho": 1.5, "seed": 1, "method": "PGD"})
    runs = [run for group in found for run in group.runs]
    assert differing_settings(runs) == ["Experiment.inference", "Geometric.rho"]
    assert differing_settings(runs[:1]) == []


def test_a_run_without_settings_makes_no_difference(groups):
    (group,) = groups({}, {"seed": 1})
    group.runs[0].settings.clear()
    assert differing_settings(group.runs) == []


def test_a_group_that_mixes_settings_or_repeats_seeds_is_told(groups, told):
    found = groups({"rho": 1.02}, {"rho": 1.5}, by=["method"])
    check_groups(found, ["method"], told.append)
    assert told == [
        "PMF mixes runs of different settings (Geometric.rho); to keep them apart: --by method,Geometric.rho",
        "PMF has more than one run of seed 0; its spread is not that of its seeds",
    ]


def test_a_setting_that_an_older_run_does_not_know_mixes_nothing(groups, told):
    (group,) = groups({}, {"seed": 1}, by=["method"])
    group.runs[1].settings["cifar10.cutout"] = "0"
    check_groups([group], ["method"], told.append)
    assert told == []


def test_by_default_a_configuration_is_a_group_whatever_its_seeds(groups):
    found = groups(
        *({"top1": 97.0 + seed, "seed": seed, "rho": rho} for seed in (0, 1) for rho in (1.02, 1.2)),
        {"top1": 99.0, "method": "BC", "seed": 0},
    )
    assert [(group.label, len(group.runs)) for group in found] == [("BC", 1), ("PMF rho 1.02", 2), ("PMF rho 1.2", 2)]


def test_lower_is_better_where_the_metric_says_so_and_metrics_are_not_averaged(groups):
    loss = {"name": "loss", "title": "loss", "higher": False, "unit": "", "digits": 4}
    text = [{"metric": loss, "test_loss": v, "best_val_loss": v, "method": m, "seed": s}
            for m, v, s in (("PMF", 1.5, 0), ("BC", 1.4, 0), ("PMF", 1.7, 1))]  # fmt: skip
    found = groups(*text, {"top1": 97.0})
    assert [(group.label, group.metric.name) for group in found] == [("BC", "loss"), ("PMF", "loss"), ("PMF", "top1")]
    assert found[1].mean("test_loss") == pytest.approx(1.6)
    assert found[1].best() == 1.5
