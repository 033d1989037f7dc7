"""The benchmark measures what it says, and refuses what it cannot measure."""

import json

import pytest
import torch

from mrfquant.bench import main
from mrfquant.benchmarks import mrf
from mrfquant.benchmarks.timing import in_turns


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_two_levels_keep_five_quarters_of_the_float_memory(tmp_path, capsys):
    assert main(["memory", "--models", "lenet300,lenet5", "--threads", "1", "--json", str(tmp_path / "m.json")]) == 0
    found = json.loads((tmp_path / "m.json").read_text())
    for model in ("lenet300", "lenet5"):
        assert found[model]["d=2"]["ratio"] <= 1.3
    assert found["lenet300"]["float_MB"] == pytest.approx(4 * 4 * 266_610 / 1e6, rel=0.001)  # w, g and Adam's two
    assert "lenet5" in capsys.readouterr().out


def test_steps_are_timed_in_turns(capsys):
    assert main(["steps", "--models", "lenet300", "--rounds", "1", "--threads", "1"]) == 0
    assert "lenet300" in capsys.readouterr().out
    order = []
    times = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, steps=2, rounds=2)
    assert order == list("aabb" * 3)
    assert [len(t) for t in times.values()] == [2, 2]  # the first turn warms up


def test_solvers_are_timed_on_fields(monkeypatch, capsys):
    monkeypatch.setattr(mrf, "VARIABLES", 100)
    monkeypatch.setattr(mrf, "EDGES", 300)
    monkeypatch.setattr(mrf, "SIDE", 5)
    assert main(["mrf", "--rounds", "1", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "sequential mean-field" in out
    assert "100 x 100 grid" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps", "--models", "alexnet"], "there is no model 'alexnet' to time"),
        (["steps", "--rounds", "0"], "--rounds 0, expected at least 1"),
        (["memory", "--threads", "-1"], "--threads -1, expected at least 1"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
