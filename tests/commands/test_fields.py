"""infer as it is typed, and the script that compares solvers on a folder."""

import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mrfquant.commands import infer
from mrfquant.config.gin_files import CONFIGS
from mrfquant.mrf import Enumeration, FactorGraph, solve, uai

SOLVERS = sorted(file.stem for file in CONFIGS.glob("mrf/*.gin"))


@pytest.fixture
def model(tmp_path):
    """A small loopy field on disk, with its exact results beside it."""
    random = torch.Generator().manual_seed(0)
    labels = [2, 3, 2, 1, 2]
    scopes = [[0], [1], [2], [4], [0, 1], [1, 2], [2, 4], [4, 0], [0, 2, 3]]
    factors = [(s, torch.randn([labels[v] for v in s], generator=random, dtype=torch.float64)) for s in scopes]
    graph = FactorGraph(labels, factors)
    exact = Enumeration(graph).run()
    path = tmp_path / "field.uai"
    uai.write_model(path, graph)
    uai.write_mar(f"{path}.MAR", graph.per_variable(exact.marginals))
    uai.write_map(f"{path}.MAP", exact.labels.tolist())
    uai.write_pr(f"{path}.PR", exact.log_z)
    return path


def test_every_solver_runs_from_its_file(model, capsys):
    for name in set(SOLVERS) - ({"toulbar2"} if find_spec("pytoulbar2") is None else set()):
        assert infer.main([str(model), "--solver", name, "--set", "solve.iterations = 30"]) == 0, name
        out = capsys.readouterr().out
        assert out.startswith("field.uai: 5 variables of 1 to 3 labels, 9 factors of up to 3 variables, 0 observed\n")
        assert f"{name}: " in out
        assert "energy" in out


@pytest.mark.parametrize("task", ["mar", "map", "pr"])
def test_exact_results_equal_the_reference_and_are_written_as_such(task, model, tmp_path, capsys):
    reference, out = f"{model}.{task.upper()}", tmp_path / "result"
    arguments = [str(model), "--task", task, "--solver", "junction_tree", "--reference", reference, "--out", str(out)]
    assert infer.main(arguments) == 0
    printed = capsys.readouterr().out
    expected = {"mar": "mean absolute error 0.00e+00", "map": "ours is +0.000000", "pr": "ours is +0.000000"}[task]
    assert expected.replace("0.00e+00", "") in printed
    assert out.read_text().split("\n")[0] == task.upper()
    read = {"mar": uai.read_mar, "map": uai.read_map, "pr": uai.read_pr}[task]
    mine, theirs = read(out), read(reference)
    if task == "mar":
        mine, theirs = ([p for row in rows for p in row] for rows in (mine, theirs))
    assert mine == pytest.approx(theirs, abs=1e-9)


def test_the_default_is_exact_where_the_field_is_small_and_thin(model, tmp_path, capsys):
    assert infer.main([str(model), "--task", "map", "--reference", f"{model}.MAP"]) == 0
    assert "ours is +0.000000" in capsys.readouterr().out.replace("-0.000000", "+0.000000")
    for task in ("mar", "map", "pr"):
        assert infer.main([str(model), "--task", task, "--out", str(tmp_path / task)]) == 0
    assert "clique tree: exact" in capsys.readouterr().out
    assert (tmp_path / "map").read_text() == Path(f"{model}.MAP").read_text()
    exact = [p for row in uai.read_mar(f"{model}.MAR") for p in row]
    assert [p for row in uai.read_mar(tmp_path / "mar") for p in row] == pytest.approx(exact, abs=1e-12)
    assert uai.read_pr(tmp_path / "pr") == pytest.approx(uai.read_pr(f"{model}.PR"), abs=1e-12)


def test_a_small_field_is_solved_before_torch_could_be_imported(model, tmp_path):
    """With evidence; the same as by the junction tree of torch."""
    evidence = tmp_path / "e"
    evidence.write_text("2 0 1 3 0\n")
    script = "import sys; from mrfquant.__main__ import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    words = [sys.executable, "-c", script, "infer", str(model), "--evid", str(evidence), "--out", str(tmp_path / "r")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n")
    graph = uai.read_model(model)
    expected = solve(graph, Enumeration, {0: 1, 3: 0})
    for row, exact in zip(uai.read_mar(tmp_path / "r"), graph.per_variable(expected.marginals), strict=True):
        assert row == pytest.approx(exact, abs=1e-12)
    assert f"{expected.log_z / math.log(10):.6f} (exact)" in done.stdout


def test_evidence_is_taken(model, tmp_path, capsys):
    evidence = tmp_path / "e"
    evidence.write_text("1 0 1\n")
    arguments = [str(model), "--evid", str(evidence), "--solver", "junction_tree", "--out", str(tmp_path / "r")]
    assert infer.main(arguments) == 0
    assert uai.read_mar(tmp_path / "r")[0] == [0.0, 1.0]
    assert "1 observed" in capsys.readouterr().out


def test_bad_input_is_one_sentence_and_status_2(model, tmp_path, capsys):
    impossible, other, contradiction = tmp_path / "impossible", tmp_path / "other", tmp_path / "zero.uai"
    impossible.write_text("1 0 2\n")
    other.write_text("MAR\n1 2 0.5 0.5\n")
    contradiction.write_text("MARKOV\n1\n2\n2\n1 0\n1 0\n\n2 1 0\n2 0 1\n")
    hidden = tmp_path / "hidden.uai"
    hidden.write_text("MARKOV\n2\n2 2\n2\n2 0 1\n2 0 1\n\n4 1 0 0 1\n4 0 1 1 0\n")
    wide = FactorGraph([2] * 30, [([a, b], torch.zeros(2, 2)) for a in range(30) for b in range(a)])
    uai.write_model(tmp_path / "wide.uai", wide)
    cases = {
        (str(tmp_path / "missing.uai"),): "missing.uai",
        (str(model), "--solver", "magic"): "--solver 'magic' is neither a gin file nor one of",
        (str(model), "--evid", str(impossible)): "gives variable 0 the label 2: it has the labels 0 to 1",
        (str(model), "--reference", str(other)): "does not fit",
        (str(model), "--set", "BeliefPropagation.damping = 2.0"): "BeliefPropagation.damping = 2.0",
        (str(model), "--set", "TreeReweighted.noise = 0.5"): "nothing in this run reads it",
        (str(model), "--task", "pr", "--solver", "icm", "--out", str(tmp_path / "x")): "gives no log Z to write",
        (
            str(model),
            "--solver",
            "proximal_mean_field",
            "--set",
            "Relaxation.inference = @BinaryConnect",
        ): "that takes an energy",
        (str(contradiction), "--solver", "icm"): "the factors of variable 0 alone contradict each other",
        (str(hidden), "--solver", "junction_tree"): "no labelling has a probability above 0",
        (str(tmp_path / "wide.uai"), "--solver", "junction_tree"): "the junction tree needs a table of 2^30.0 entries",
    }
    for arguments, message in cases.items():
        assert infer.main(list(arguments)) == 2, arguments
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1


def test_the_likeliest_labelling_comes_with_a_proof(model, capsys):
    png = model.parent / "gap.png"
    assert infer.main([str(model), "--task", "map", "--seconds", "5", "--png", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "(proved optimal)" in capsys.readouterr().out
    assert infer.main([str(model), "--task", "map", "--seconds", "-5"]) == 2
    assert "--seconds -5.0, expected a number above 0" in capsys.readouterr().err


def test_marginal_map_is_a_task(model, tmp_path, capsys):
    query, evidence = tmp_path / "q", tmp_path / "e"
    query.write_text("2 4 1\n")
    evidence.write_text("1 0 1\n")
    words = [str(model), "--task", "mmap", "--query", str(query), "--evid", str(evidence), "--out", str(tmp_path / "r")]
    assert infer.main(words) == 0
    graph = uai.read_model(model)
    sums = {(x, y): solve(graph, Enumeration, {0: 1, 4: x, 1: y}).log_z for x in range(2) for y in range(3)}
    x, y = max(sums, key=sums.get)
    assert (tmp_path / "r").read_text() == f"MMAP\n2 4 {x} 1 {y}\n"
    assert f"{max(sums.values()) / math.log(10):.6f}" in capsys.readouterr().out
    query.write_text("1 0\n")
    assert infer.main(words) == 2
    assert "asks for variable 0, which the model has not, or which is observed" in capsys.readouterr().err
    assert infer.main([str(model), "--task", "mmap"]) == 2


def test_a_forbidden_labelling_is_not_written(tmp_path, capsys):
    never = torch.full((3, 3), -math.inf).fill_diagonal_(0.0)
    cycle = [([i, (i + 1) % 3], never if i else never.roll(1, 0)) for i in range(3)]
    uai.write_model(tmp_path / "none.uai", FactorGraph([3] * 3, cycle))
    words = [str(tmp_path / "none.uai"), "--task", "map", "--solver", "icm", "--out", str(tmp_path / "x.MAP")]
    assert infer.main(words) == 1
    assert "every one tried is forbidden" in capsys.readouterr().err
    assert not (tmp_path / "x.MAP").exists()


def test_an_unused_setting_is_refused_where_everything_is_observed(model, tmp_path, capsys):
    evidence = tmp_path / "all.evid"
    evidence.write_text("4 0 0 1 0 2 0 4 0")
    arguments = [str(model), "--evid", str(evidence), "--solver", "icm", "--set"]
    assert infer.main([*arguments, "BeliefPropagation.damping = 0.1"]) == 2
    assert "BeliefPropagation.damping" in capsys.readouterr().err
    assert infer.main([*arguments, "solve.restarts = 2"]) == 0


def test_solvers_compete_on_a_folder(model, python):
    script = Path(__file__).parents[2] / "docs" / "uai_table.py"
    done = python.run(script, model.parent, "--solvers", "icm,local_search,belief_propagation", "--seconds", "5")
    assert done.returncode == 0, done.stderr
    gaps, errors, excess = done.stdout.split("\n\n| ")[1:]
    cells = [[cell.strip() for cell in part.splitlines()[2].split("|")[2:5]] for part in (gaps, errors, excess)]
    assert re.fullmatch(r"0|proved, \d+\.\d s", cells[0][1])  # local search finds the optimum
    assert float(cells[1][2]) < min(float(error) for error in cells[1][:2])  # the others have labels, no marginals
    assert cells[2][0] == "-"
    assert math.isfinite(float(cells[2][2]))
