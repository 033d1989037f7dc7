"""mrfquant round on the embedded digits: from a float run to a rounded one that packs, and bad input."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mrfquant.commands import eval as evaluate
from mrfquant.commands import export_field, pack, round, run
from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.models import LeNet5
from mrfquant.mrf import Toulbar2, toulbar2, uai
from mrfquant.mrf.from_layer import quadratic_field
from mrfquant.packing import load
from mrfquant.packing.chains import PackedChains
from mrfquant.rounding import Rounding

HALF = ["--set", "LeNet5.width = 0.5"]


@pytest.fixture(scope="module")
def float_run(tmp_path_factory):
    """A float LeNet-5 of half the width on the digits, trained for moments."""
    path = tmp_path_factory.mktemp("runs") / "float"
    words = ["--gin", "gin/ref_lenet5_digits.gin", *HALF, "--set", "Trainer.iterations = 80", "--wandb", "disabled"]
    assert run.main([*words, "--out", str(path)]) == 0
    return path


def summary(path):
    return json.loads((path / "summary.json").read_text())


def refused(words, capsys, *expected):
    assert round.main([str(word) for word in words]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    for part in expected:
        assert part in told.err


def test_a_run_is_rounded_tested_and_packed(float_run, tmp_path, capsys):
    out = tmp_path / "rounded"
    assert round.main(["--run", str(float_run), "--bits", "2", "--solver", "icm", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "energy / gptq" in printed
    found = summary(out)
    assert found["method"] == "ROUND icm"
    assert found["bits"] == 2
    assert [layer["name"] for layer in found["layers"]] == [f"layers.{i}.weight" for i in (0, 4, 9, 12)]
    assert all(layer["relative"] <= 1 for layer in found["layers"])
    assert found["test_top1"] > found["float_test_top1"] - 10
    best = torch.load(out / "checkpoints" / "best-00000000.pt", weights_only=True)["model"]
    for row in best["layers.4.weight"]:
        assert len(row.unique()) <= 4
    assert pack.main([str(out), "-o", str(tmp_path / "model.safetensors")]) == 0
    assert "layers.0.bias, float" in capsys.readouterr().out


def test_paths_through_a_trellis_are_packed_and_read_back(float_run, tmp_path, capsys):
    out, file = tmp_path / "rounded", tmp_path / "model.safetensors"
    assert round.main(["--run", str(float_run), "--bits", "2", "--trellis", "8", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "layers.12.weight" in printed
    found = summary(out)
    assert found["test_top1"] > found["float_test_top1"] - 10
    state = torch.load(out / "checkpoints" / "best-00000000.pt", weights_only=True)["model"]
    assert pack.main([str(out), "-o", str(file)]) == 0
    packed = load(file).packed_network
    assert isinstance(packed.parameters["layers.9.weight"], PackedChains)
    assert evaluate.main([str(file)]) == 0
    assert f"{found['test_top1']:.2f} %" in capsys.readouterr().out
    assert evaluate.main([str(file), "--layers"]) == 0
    assert "trellis of 2 bits, memory 8" in capsys.readouterr().out
    assert evaluate.main([str(out)]) == 2
    assert "is rounded to a trellis: pack it, and evaluate the file" in capsys.readouterr().err
    assert all(torch.equal(values, state[name]) for name, values in packed.state_dict().items())


def test_weights_from_a_file_and_a_layer_left_out(float_run, tmp_path, capsys):
    state = torch.load(next((float_run / "checkpoints").glob("best-*.pt")), weights_only=True)["model"]
    torch.save(state, tmp_path / "weights.pt")
    save_file(state, tmp_path / "weights.safetensors")
    tops = []
    for suffix in ("pt", "safetensors"):
        out = tmp_path / suffix
        words = ["--weights", tmp_path / f"weights.{suffix}", "--gin", "gin/ref_lenet5_digits.gin", *HALF]
        words += ["--solver", "icm", "--exclude", "layers.0.*", "--out", out]
        assert round.main([str(word) for word in words]) == 0
        tops.append(summary(out)["test_top1"])
        best = torch.load(out / "checkpoints" / "best-00000000.pt", weights_only=True)["model"]
        assert torch.equal(best["layers.0.weight"], state["layers.0.weight"])
    assert tops[0] == tops[1]


def test_a_memory_that_is_too_short_is_refused(float_run, tmp_path, capsys):
    words = ["--run", float_run, "--bits", "2", "--trellis", "2", "--out", tmp_path / "no"]
    refused(words, capsys, "Trellis.memory = 2, expected a whole number from 3 (more than its 2 bits a weight) to 16")


def test_groups_and_other_bits_by_name(float_run, tmp_path, capsys):
    out = tmp_path / "rounded"
    words = ["--run", str(float_run), "--solver", "gptq", "--group-size", "32", "--override", "layers.4*=3"]
    assert round.main([*words, "--out", str(out)]) == 0
    best = torch.load(out / "checkpoints" / "best-00000000.pt", weights_only=True)["model"]
    for name, levels in (("layers.4.weight", 8), ("layers.9.weight", 4)):
        rows = best[name].flatten(1)
        assert max(len(run.unique()) for row in rows for run in row.split(32)) == levels
        assert max(len(row.unique()) for row in rows) > levels
    assert pack.main([str(out), "-o", str(tmp_path / "model.safetensors")]) == 0


def test_rows_of_layers_are_written_as_fields_and_binary_problems(float_run, tmp_path, monkeypatch):
    monkeypatch.setattr(export_field, "SECONDS", 0.3)
    words = ["--run", str(float_run), "--solver", "gptq", "--bits", "1", "--out", str(tmp_path / "out")]
    assert round.main([*words, "--export-field", str(tmp_path / "fields" / "lenet.uai"), "--rows", "2"]) == 0
    files = sorted((tmp_path / "fields").glob("*.uai"))
    assert [file.name for file in files[:2]] == ["lenet-layer1-row0.uai", "lenet-layer1-row1.uai"]
    field, told = uai.read_model(files[0]), json.loads(files[0].with_suffix(".json").read_text())
    labels = torch.tensor(uai.read_map(f"{files[0]}.MAP"))
    assert field.energy(labels).item() == pytest.approx(told["energy"], rel=1e-9)
    assert told["bound"] <= told["energy"]
    first, *lines = files[0].with_suffix(".qubo").read_text().split("\n")[:-1]
    energy = float(first.split()[1])
    for i, j, coefficient in (line.split() for line in lines):
        energy += float(coefficient) * int(labels[int(i)]) * int(labels[int(j)])
    assert energy == pytest.approx(told["energy"], rel=1e-9)
    if toulbar2.available():
        result = Toulbar2(field).run(1, seconds=20)
        assert result.energy >= told["energy"] - 1e-9
        assert result.optimal <= math.isclose(result.energy, told["energy"], rel_tol=1e-9)


def test_a_quadratic_field_has_the_energy_of_its_layer():
    random = torch.Generator().manual_seed(0)
    inputs, w = torch.randn(50, 4, generator=random).double(), torch.randn(4, generator=random).double()
    moments, choices = inputs.T @ inputs / 50, torch.randn(3, 4, generator=random).double()
    field = quadratic_field(moments, w, choices)
    for labels in torch.cartesian_prod(*[torch.arange(3)] * 4):
        error = inputs @ (choices[labels, torch.arange(4)] - w)
        assert field.energy(labels).item() == pytest.approx(0.5 * error.square().mean().item())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--run", "RUN", "--override", "layers.4"], "--override layers.4, expected a pattern of names and bits"),
        (["--run", "nowhere"], "nowhere is not a run"),
        (["--run", "RUN", "--exclude", "nothing"], "the pattern 'nothing' of the labelling matches no parameter"),
        (["--run", "RUN", "--exclude", "*"], "leave no parameter to label"),
        (["--run", "RUN", "--bits", "0"], "uniform.bits = 0"),
        (["--run", "RUN", "--bits", "9"], "uniform.bits = 9, expected a whole number from 1 to 8"),
        (["--run", "RUN", "--set", "Rounding.damping = 2.0"], "Rounding.damping = 2.0, expected a number between 0"),
        (["--run", "RUN", "--set", "Rounding.images = 1"], "Rounding.images = 1, expected a whole number above 1"),
        (["--run", "RUN", "--set", "RoundTree.sweeps = 3"], "nothing in this run reads it"),
        (["--weights", "nowhere.pt", "--gin", "gin/ref_lenet5_digits.gin"], "nowhere.pt is not there"),
    ],
)
def test_bad_input_is_one_sentence(words, expected, float_run, tmp_path, capsys):
    words = [float_run if word == "RUN" else word for word in words]
    refused([*words, "--out", tmp_path / "out"], capsys, expected)
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_fit_or_are_none(tmp_path, capsys):
    gin = ["--gin", "gin/ref_lenet5_digits.gin", "--out", tmp_path / "out"]
    (tmp_path / "text.pt").write_text("no weights")
    refused(["--weights", tmp_path / "text.pt", *gin], capsys, "cannot be read as a .pt or .safetensors file")
    (tmp_path / "table.pt").write_text("0.1,0.2\n0.3,0.4\n")
    refused(["--weights", tmp_path / "table.pt", *gin], capsys, "cannot be read as a .pt or .safetensors file")
    torch.save([1, 2], tmp_path / "list.pt")
    refused(["--weights", tmp_path / "list.pt", *gin], capsys, "is not a state dict")
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.pt")
    refused(["--weights", tmp_path / "other.pt", *gin], capsys, "other.pt does not fit the network: ")


def test_a_quantized_run_and_broken_weights_are_refused(float_run, tmp_path, capsys):
    words = ["--gin", "gin/pmf_lenet300_digits.gin", "--set", "Trainer.iterations = 5", "--wandb", "disabled"]
    assert run.main([*words, "--out", str(tmp_path / "binary")]) == 0
    capsys.readouterr()
    refused(["--run", tmp_path / "binary"], capsys, "is quantized already: give a float run")
    state = torch.load(next((float_run / "checkpoints").glob("best-*.pt")), weights_only=True)["model"]
    state["layers.4.weight"][0] = torch.nan
    torch.save(state, tmp_path / "nan.pt")
    words = ["--weights", tmp_path / "nan.pt", "--gin", "gin/ref_lenet5_digits.gin", *HALF]
    refused(words, capsys, "layers.4.weight", "finite")


def _round(model, images, solver="gptq"):
    names = {name: LevelSet([-1, 1]) for name, p in model.named_parameters() if p.dim() > 1}
    said = []
    result = Rounding(solver=solver).run(model, names, [images], lambda _: None, said.append)
    return result.answers, said


def test_other_layers_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.RNN(4, 4))
    with pytest.raises(BadInput, match=r"no batch reaches 1\.weight_ih_l0 as the weight of a linear layer"):
        _round(model, torch.randn(3, 4))


def test_inputs_that_are_not_finite_are_told_with_their_layer():
    with pytest.raises(BadInput, match=r"the inputs of 0\.weight are not finite"):
        _round(nn.Sequential(nn.Linear(4, 2)), torch.full((3, 4), torch.inf))


def test_few_inputs_are_damped_and_told():
    answers, said = _round(nn.Sequential(nn.Linear(40, 2)), torch.randn(5, 40))
    assert "5 inputs are few for 40 weights a row; damped by 10%" in said[0]
    assert answers["0.weight"][0].shape == (2, 40)


def test_settings_reach_the_trained_network(tmp_path, capsys):
    model = LeNet5((1, 28, 28), 10, width=0.2)
    torch.save(model.state_dict(), tmp_path / "narrow.pt")
    words = ["--weights", tmp_path / "narrow.pt", "--gin", "gin/ref_lenet5_digits.gin", "--solver", "nearest"]
    words += ["--set", "LeNet5.width = 0.2", "--out", tmp_path / "out"]
    assert round.main([str(word) for word in words]) == 0
    assert summary(tmp_path / "out")["model"] == "lenet5"


def test_a_rounding_that_fails_leaves_no_folder(float_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Rounding, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert round.main(["--run", str(float_run), "--out", str(tmp_path / "out")]) == 130
    assert not (tmp_path / "out").exists()


def test_a_finished_rounding_is_not_repeated_and_no_other_one_mixed_in(float_run, tmp_path, capsys):
    words = ["--run", str(float_run), "--solver", "nearest", "--out", str(tmp_path / "out")]
    assert round.main(words) == 0
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    capsys.readouterr()
    assert round.main(words) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'} is finished: test top-1 ")
    refused([*words, "--bits", "1"], capsys, "is there already", "give another --out")
    state = torch.load(next((float_run / "checkpoints").glob("best-*.pt")), weights_only=True)["model"]
    torch.save({name: 2 * tensor for name, tensor in state.items()}, tmp_path / "other.pt")
    other = ["--weights", tmp_path / "other.pt", "--gin", float_run / "config.gin", *words[2:]]
    refused(other, capsys, "is there already", "give another --out")
    assert before == {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}


def test_singular_moments_without_damping_are_told():
    alike = torch.ones(50, 8)
    names = {"0.weight": LevelSet([-1, 1])}
    with pytest.raises(BadInput, match=r"second moments of 0\.weight's inputs are singular: raise Rounding\.damping"):
        Rounding(solver="gptq", damping=0.0).run(nn.Sequential(nn.Linear(8, 2)), names, [alike], lambda _: None, print)


def test_grouped_convolutions_are_rounded_group_by_group():
    torch.manual_seed(1)
    model, images = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False)), torch.randn(30, 4, 6, 6)
    weight = model[0].weight.detach().clone()
    whole, _ = _round(model, images, "icm")
    for group in range(2):
        part = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False))
        part[0].weight.data = weight[3 * group : 3 * group + 3]
        expected, _ = _round(part, images[:, 2 * group : 2 * group + 2], "icm")
        assert torch.equal(expected["0.weight"][0], whole["0.weight"][0][3 * group : 3 * group + 3])
