"""infer, denoise and uai-table as they are typed."""

import math

import pytest
import torch

from mrfquant.commands import denoise, infer, uai_table
from mrfquant.config.gin_files import CONFIGS
from mrfquant.mrf import Enumeration, FactorGraph, uai

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
    for name in SOLVERS:
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


def test_the_default_solvers_answer(model, capsys):
    assert infer.main([str(model), "--task", "map", "--reference", f"{model}.MAP"]) == 0
    assert "ours is +0.000000" in capsys.readouterr().out.replace("-0.000000", "+0.000000")
    assert infer.main([str(model)]) == 0
    out = capsys.readouterr().out
    assert "(estimate)" in out
    assert "converged after" in out


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


def test_a_picture_is_cleaned_and_drawn(tmp_path, capsys):
    png = tmp_path / "clean.png"
    assert denoise.main(["--solvers", "icm,max_product", "--png", str(png)]) == 0
    out = capsys.readouterr().out
    assert "max_product" in out
    assert png.read_bytes().startswith(b"\x89PNG")
    picture = denoise.make_picture(denoise.digits_picture(), 2, 0.6, 0)
    noisy = (picture.noisy[..., None] - picture.greys).abs().argmin(-1)
    before = 100 * (noisy != picture.labels).double().mean().item()
    wrong = [float(line.split()[3]) for line in out.splitlines() if line.startswith(("icm", "max_product"))]
    assert all(share < before / 2 for share in wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "1"], "--labels 1, expected a number from 2 to 16"),
        (["--noise", "-1"], "--noise -1.0, expected a number above 0"),
        (["--solvers", "magic"], "--solvers 'magic' is neither a gin file nor one of"),
    ],
)
def test_denoise_refuses_bad_input(arguments, message, capsys):
    assert denoise.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_photograph_has_a_hundred_thousand_pixels():
    grey = denoise.photograph()
    assert grey.shape == (400, 300)
    assert 0 <= grey.min() < 0.2 < 0.8 < grey.max() <= 1


def test_a_solver_of_ones_own_cleans_a_picture_and_competes(model, tmp_path, capsys):
    own = tmp_path / "mine.gin"
    own.write_text("solve.solver = @ICM\n")
    assert denoise.main(["--solvers", str(own), "--png", str(tmp_path / "own.png")]) == 0
    assert "\nmine " in capsys.readouterr().out
    assert uai_table.main([str(model.parent), "--solvers", str(own)]) == 0
    assert "| mine |" in capsys.readouterr().out


def test_the_likeliest_labelling_comes_with_a_proof(model, capsys):
    png = model.parent / "gap.png"
    assert infer.main([str(model), "--task", "map", "--seconds", "5", "--png", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "(proved optimal)" in capsys.readouterr().out
    assert infer.main([str(model), "--task", "map", "--seconds", "-5"]) == 2
    assert "--seconds -5.0, expected a number above 0" in capsys.readouterr().err


def test_an_unused_setting_is_refused_where_everything_is_observed(model, tmp_path, capsys):
    evidence = tmp_path / "all.evid"
    evidence.write_text("4 0 0 1 0 2 0 4 0")
    arguments = [str(model), "--evid", str(evidence), "--solver", "icm", "--set"]
    assert infer.main([*arguments, "BeliefPropagation.damping = 0.1"]) == 2
    assert "BeliefPropagation.damping" in capsys.readouterr().err
    assert infer.main([*arguments, "solve.restarts = 2"]) == 0


def test_solvers_compete_on_a_folder(model, tmp_path, capsys):
    table = tmp_path / "table.md"
    arguments = [str(model.parent), "--solvers", "icm,local_search,belief_propagation", "--markdown", str(table)]
    assert uai_table.main(arguments) == 0
    text = table.read_text()
    assert text in capsys.readouterr().out + "\n"
    gaps = text.split("Gap of the labelling's energy:")[1].split("Seconds:")[0]
    assert gaps.strip().splitlines()[-1].split("|")[3].strip() == "0"  # local search finds the optimum
    errors = [float(cell) for cell in text.splitlines()[4].split("|")[2:5]]
    assert errors[2] < min(errors[:2])  # belief propagation has marginals, the others have labels
    (tmp_path / "broken.uai").write_text("MARKOV\n2 2\n")
    assert uai_table.main(arguments) == 1
    said = capsys.readouterr()
    assert "broken: refused: " in said.err
    assert said.err.endswith("failed: refused were broken; the tables have the rest\n")
    assert "| field | " in table.read_text()
    assert uai_table.main([str(tmp_path / "none")]) == 2
    assert "holds no file NAME.uai" in capsys.readouterr().err
    assert math.isfinite(errors[2])
