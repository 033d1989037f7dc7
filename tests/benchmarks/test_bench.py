"""The benchmark measures what it says, and refuses what it cannot measure."""

import importlib
import json
import subprocess
import sys
import time

import pytest
import torch
from matplotlib import image

from mrfquant.benchmarks import energies, memory, mrf, projections, rounding, timing
from mrfquant.benchmarks.parts import measure_parts
from mrfquant.benchmarks.timing import Options, in_turns, ratio
from mrfquant.commands.bench import SUBJECTS, main, table
from mrfquant.kernels import dispatch


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench(tmp_path):
    """Runs a subject for as short as it goes; gives its figures."""

    def run(subject, *arguments):
        path = tmp_path / "found.json"
        assert main([subject, "--seconds", "0", "--threads", "1", "--json", str(path), *arguments]) == 0
        return json.loads(path.read_text())["found"][subject]

    return run


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="no /proc")
def test_scales_and_starts_take_no_memory_of_their_own(bench, monkeypatch):
    monkeypatch.setattr(memory, "LAYERS", 2)
    monkeypatch.setattr(memory, "SIDES", ("3",))
    found = bench("memory")["d=3"]
    assert 100 < found["float, MB"] < 300  # weights, gradient and Adam's two, 34 MB each, and what backward needs
    assert found["kept"]["ratio"] < 1.4
    assert found["peak of building"]["ratio"] < 1.5
    assert found["building, steps"] < 40  # a step of two layers is short; 480 by bisection


def test_sides_take_turns():
    order = []
    sides = {name: lambda name=name: (order.append(name), time.sleep(Options.MIN_TURN)) for name in "ab"}
    times = in_turns(sides, Options(seconds=0))
    assert order[:4] == list("aabb")  # a first call and one that is timed
    assert order[4:] == list("ab" * Options.MIN_ROUNDS)
    assert [len(t) for t in times.values()] == [Options.MIN_ROUNDS] * 2
    assert min(times["a"]) >= Options.MIN_TURN


def test_the_clock_of_the_cpu_leaves_out_waiting():
    def waiting():
        time.sleep(0.002)

    times = {clock: in_turns({"a": waiting}, Options(seconds=0, clock=clock))["a"] for clock in ("wall", "cpu")}
    assert max(times["cpu"]) < 0.002 <= min(times["wall"])


def test_ratio_is_the_median_with_quartiles_of_the_rounds():
    found = ratio([2.0, 8.0, 3.0, 4.0, 5.0], [1.0, 2.0, 1.0, 1.0, 1.0])
    assert found == {"ratio": 4.0, "low": 3.0, "high": 4.0, "rounds": 5}


def test_steps(bench):
    found = bench("steps", "--models", "lenet300")
    assert found["lenet300"]["d=2"]["rounds"] == Options.MIN_ROUNDS
    assert found["lenet300"]["d=4"]["ratio"] > 0


def test_parts_are_those_that_the_step_runs_through():
    found = dict(measure_parts(Options(seconds=0)))
    fused, torchs, planes = (found[f"PMF, {name}"] for name in ("d=2", "d=2, torch's operations", "d=4, planes"))
    if dispatch.loops("simplex") is not None:  # all of it in one pass over memory
        assert fused["fused"] > 0.5 * (fused["step, ms"] - fused["forward and backward"])
        assert fused["product"] == fused["optimizer"] == fused["projection"] == fused["clearing"] == 0
    for apart in (torchs, planes):
        assert min(apart[part] for part in ("product", "optimizer", "projection", "clearing")) > 0
        assert apart["optimizer"] > apart["fused"]  # which finds out that it cannot


@pytest.mark.parametrize("command", ["run", "bench"])
def test_help_imports_nothing_heavy(command):
    heavy = "{'torch', 'numpy', 'matplotlib', 'wandb', 'sklearn', 'numba'}"
    code = f"import sys; from mrfquant.commands.{command} import parser; parser().format_help()"
    code += f"; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_projections(bench, monkeypatch):
    monkeypatch.setattr(projections, "VARIABLES", 100)
    found = bench("projections")
    assert found["softmax, d=4"]["torch"]["ratio"] > 0
    assert "mrfquant, ms" in found["sparsemax, d=4"]


def test_solvers_are_timed_on_fields(bench, monkeypatch):
    monkeypatch.setattr(mrf, "VARIABLES", 100)
    monkeypatch.setattr(mrf, "EDGES", 300)
    monkeypatch.setattr(mrf, "SIDE", 5)
    found = bench("mrf")
    assert "sequential mean-field" in found["a million edges"]
    assert "belief propagation, ms" in found["100 x 100 grid"]


def test_the_picture_has_what_was_measured(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(projections, "VARIABLES", 100)
    bench("projections", "--png", str(tmp_path / "p.png"))
    assert image.imread(tmp_path / "p.png").std() > 0.01


def test_missing_peers_are_one_sentence_each(bench, monkeypatch, capsys):
    real = importlib.import_module

    def missing(name, *arguments):
        if name.partition(".")[0] in ("entmax", "torchao"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(timing.importlib, "import_module", missing)
    monkeypatch.setattr(projections, "VARIABLES", 100)
    assert "entmax" not in bench("projections", "--peers")["sparsemax, d=4"]
    assert "entmax is not installed, so it is left out: pip install entmax" in capsys.readouterr().err


def test_rows_of_other_columns_start_a_new_table():
    text = table({"a": {"x": 1.0}, "b": {"x": 250.0}, "c": {"y": {"ratio": 2.0, "low": 1.5, "high": 3.0}}})
    assert text.split("\n\n")[0].splitlines()[2].split() == ["b", "250"]
    assert "2x (1.5 .. 3)" in text


def test_every_subject_has_its_function():
    for _, module, function in SUBJECTS.values():
        assert callable(getattr(importlib.import_module(f"mrfquant.benchmarks.{module}"), function))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps", "--models", "alexnet"], "there is no model 'alexnet' to time"),
        (["steps", "--seconds", "-1"], "--seconds -1.0, expected at least 0"),
        (["memory", "--threads", "-1"], "--threads -1, expected at least 1"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err


def test_curvature_is_compared_with_forward_and_first_order(bench, monkeypatch):
    monkeypatch.setattr(energies, "INTERVAL", 2)
    found = bench("curvature", "--models", "lenet300,vgg16")
    assert list(found) == ["lenet300, statistics", "lenet300, 100 steps"]
    assert found["lenet300, statistics"]["second moments"]["ratio"] > 0
    assert found["lenet300, 100 steps"]["pairwise"]["ratio"] > 0


def test_priors_are_compared_with_first_order(bench):
    found = bench("energies", "--models", "lenet300")
    assert list(found) == ["lenet300, d=2", "lenet300, d=3", "lenet300, d=3, planes", "lenet300, d=4"]
    assert all(row[name]["ratio"] > 0 for row in found.values() for name in ("costs of labels", "code length"))


def test_rounding_shows_energy_and_time_against_gptq(bench, monkeypatch):
    monkeypatch.setattr(rounding, "SIZES", ((32, 8),))
    found = bench("round")
    assert found["32 x 8, gptq"]["energy / gptq"] == found["32 x 8, gptq"]["time / gptq"] == 1
    assert found["32 x 8, nearest"]["energy / gptq"] > 1 > found["32 x 8, icm, 50 kicks"]["energy / gptq"]
    assert {name.split(", ")[1] for name in found} == {"gptq", "nearest", "icm", "mean_field", "tree"}
