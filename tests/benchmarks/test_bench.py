"""The benchmark measures what it says, and refuses what it cannot measure."""

import importlib
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from matplotlib import image

from mrfquant.benchmarks import energies, loader, mrf, projections, rounding, scaling, startup, timing, whole_run
from mrfquant.benchmarks.operations import Operations
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


def test_the_line_keeps_five_quarters_of_the_float_memory_for_any_number_of_levels(bench, capsys):
    found = bench("memory", "--models", "lenet300,lenet5")
    for model in ("lenet300", "lenet5"):
        assert all(found[model][f"d={d}"]["ratio"] <= 1.26 for d in (2, 3, 4, 8, 16))
        assert found[model]["d=4, planes"]["ratio"] == pytest.approx(4.5, abs=0.01)
    assert found["lenet300"]["float, MB"] == pytest.approx(4 * 4 * 266_610 / 1e6, rel=0.001)  # w, g and Adam's two
    assert "lenet5" in capsys.readouterr().out


def test_sides_take_turns():
    order = []
    sides = {name: lambda name=name: (order.append(name), time.sleep(Options.TURN)) for name in "ab"}
    times = in_turns(sides, Options(seconds=0))
    assert order[:4] == list("aabb")  # a first call and one that is timed
    assert order[4:] == list("ab" * Options.LEAST)
    assert [len(t) for t in times.values()] == [Options.LEAST] * 2
    assert min(times["a"]) >= Options.TURN


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
    assert found["lenet300"]["d=2"]["rounds"] == Options.LEAST
    assert found["lenet300"]["d=4"]["ratio"] > 0


def test_parts_are_those_that_the_step_runs_through():
    found = dict(measure_parts(Options(seconds=0)))
    fused, torchs, planes = (found[f"PMF, {name}"] for name in ("d=2", "d=2, torch's operations", "d=4, planes"))
    if dispatch._kernels() is not None:  # all of it in one pass over memory
        assert fused["fused"] > 0.5 * (fused["step, ms"] - fused["forward and backward"])
        assert fused["product"] == fused["optimizer"] == fused["projection"] == fused["clearing"] == 0
    for apart in (torchs, planes):
        assert min(apart[part] for part in ("product", "optimizer", "projection", "clearing")) > 0
        assert apart["optimizer"] > apart["fused"]  # which finds out that it cannot


def test_whole_run(bench, monkeypatch):
    monkeypatch.setattr(whole_run, "INTERVAL", 2)
    monkeypatch.setattr(whole_run, "SIZES", (200, 20, 20))
    found = bench("run")
    assert list(found) == ["float", "PMF, d=2"]
    assert all(row["whole run"]["ratio"] > 0 for row in found.values())


def test_startup(bench, monkeypatch):
    monkeypatch.setattr(startup, "COMMANDS", {"nothing": ["-c", ""], "a while": ["-c", "import time; time.sleep(1)"]})
    assert bench("startup")["start-up"]["a while"]["ratio"] > 1


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


def test_loader(bench, monkeypatch):
    monkeypatch.setattr(loader, "IMAGES", 200)
    assert bench("loader")["cifar10, augmented, batch 128"]["DataLoader"]["ratio"] > 1


def test_solvers_are_timed_on_fields(bench, monkeypatch):
    monkeypatch.setattr(mrf, "VARIABLES", 100)
    monkeypatch.setattr(mrf, "EDGES", 300)
    monkeypatch.setattr(mrf, "SIDE", 5)
    found = bench("mrf")
    assert "sequential mean-field" in found["a million edges"]
    assert "belief propagation, ms" in found["100 x 100 grid"]


def test_scaling_and_its_picture(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(scaling, "SIZES", (100, 1000))
    monkeypatch.setattr(scaling, "MIDDLE", 100)
    found = bench("scaling", "--png", str(tmp_path / "p.png"))
    assert found["d=2, m=1,000"]["bytes per parameter"] == pytest.approx(20, rel=0.02)  # w, g, ã and Adam's two
    assert found["d=4, m=1,000"]["bytes per parameter"] == pytest.approx(20, rel=0.02)
    planes = found["m=100, d=4, planes"]
    assert planes["bytes per parameter"] == pytest.approx(72, rel=0.02)  # w, g and 4 planes of 4
    assert image.imread(tmp_path / "p.png").std() > 0.01


BACKWARD, ADAM, CLEARING = 3, 4 + 4, 1  # reads and writes in vectors of m values; Adam's as its signature has them
PASSES = {  # of the product and of the projection, operation by operation
    2: (3 + 4 + 2) + (2 + 2 + 2 + 2),
    4: (9 + 2 + 9) + (5 + 9 + 8 + 8 + 5 + 9 + 5),
}


@pytest.mark.parametrize("d", [2, 4])
def test_a_billion_parameters_are_arithmetic(d):
    """As counted by hand from the operations of `Softmax`."""
    found, planes = scaling.billion(d, "planes"), {2: 1, 4: 4}[d]
    passes = BACKWARD + PASSES[d] + planes * ADAM + CLEARING
    assert found["GB kept"] == pytest.approx({2: 20, 4: 72}[d], rel=0.01)
    assert found["GB moved"] == pytest.approx(4 * passes, rel=0.01)
    assert found["ms on 1 GPU"] == pytest.approx(found["GB moved"] / 2, rel=0.01)
    for gpus, link in ((8, 300), (64, 25)):
        ring = 1000 * 2 * (gpus - 1) / gpus * 4 / link
        update = 4 * (passes - BACKWARD - CLEARING)
        assert found[f"GB kept on {gpus}, shared out"] == pytest.approx(8 + {2: 12, 4: 64}[d] / gpus, rel=0.01)
        assert found[f"ms on {gpus}"] == pytest.approx(found["ms on 1 GPU"] + ring, rel=0.01)
        shared = (4 * (BACKWARD + CLEARING) + update / gpus) / 2
        assert found[f"ms on {gpus}, shared out"] == pytest.approx(shared + ring, rel=0.01)


@pytest.mark.slow
def test_processes_that_share_variables_out_keep_less_and_send_no_more():
    from mrfquant.benchmarks.shards import together

    apart, shared = together(2, "planes", False), together(2, "planes", True)
    assert apart["kept"] == pytest.approx(72, rel=0.01)
    assert shared["kept"] == pytest.approx(8 + 64 / 2, rel=0.01)
    assert shared["sent"] <= 1.05 * apart["sent"] + 0.1  # others on the machine send something, too


def test_fitted_exponent():
    sizes = np.array([1.0, 10.0, 100.0])
    assert scaling.exponent(sizes, 3 * sizes**1.5) == pytest.approx(1.5)


def test_operations_are_counted():
    a, b = torch.zeros(100), torch.zeros(100)
    with Operations() as counted:
        c = a + b
        c.view(10, 10)[0].mul_(2)
        c.sum().item()
    assert counted.calls == {"add": 1, "mul_": 1, "sum": 1, "_local_scalar_dense": 1}
    assert counted.allocated == 4 * (100 + 1)
    assert counted.moved == 4 * (300 + 20 + 101 + 1)
    assert counted.syncs == 1


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
