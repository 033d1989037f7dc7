"""pack and eval as they are typed, and the reader that the format's description shows."""

import json
import re
import runpy
from pathlib import Path

import gin
import numpy as np
import pytest
import torch

import mrfquant
from mrfquant.commands import eval as evaluation
from mrfquant.commands import pack, run
from mrfquant.labelling import Labelling
from mrfquant.packing import PackedNetwork
from mrfquant.packing.networks import labels_of
from mrfquant.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Short runs on the embedded digits: two levels, three levels with scales, and float."""
    folder = tmp_path_factory.mktemp("runs")
    short = ["--set", "Trainer.iterations = 60", "--set", "Trainer.eval_interval = 30", "--wandb", "disabled"]
    ternary = ["--set", "Labelling.levels = [-1, 0, 1]", "--set", "Labelling.scale = 'group'"]
    ternary += ["--set", "Labelling.group_size = 100", "--set", "Experiment.learn_scale = True"]
    ternary += ["--set", "Labelling.exclude = ['*.bias']"]
    for name, config, more in (
        ("binary", "pmf_lenet300_digits", []),
        ("ternary", "pmf_lenet300_digits", ternary),
        ("float", "ref_lenet300_digits", []),
    ):
        assert run.main(["--gin", f"gin/{config}.gin", *short, *more, "--out", str(folder / name)]) == 0
    return folder


@pytest.mark.parametrize(("name", "flags"), [("binary", []), ("ternary", ["--base3"])])
def test_what_was_packed_is_the_best_model(name, flags, runs, tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    assert pack.main([str(runs / name), "-o", str(file), *flags]) == 0
    out = capsys.readouterr().out
    assert "of the parameters as float32" in out
    assert ("not packed   layers.1.bias, float: 1,200 bytes" in out) == (name == "ternary")
    assert ("are not, 0.2%: biases and other vectors" in out) == (name == "ternary")
    best = RunFolder.open(runs / name).best()["model"]
    loaded = mrfquant.load(file)
    for key, tensor in loaded.state_dict().items():
        assert key.endswith("num_batches_tracked") or torch.equal(tensor, best[key]), key
    figures = tmp_path / "figures.json"
    assert evaluation.main([str(file), "--json", str(figures)]) == 0
    assert evaluation.main([str(file), "--packed"]) == 0
    out = capsys.readouterr().out
    summary = RunFolder.open(runs / name).summary()
    assert json.loads(figures.read_text())["top1"] == pytest.approx(summary["test_top1"])
    assert out.count(f"test top-1   {summary['test_top1']:.2f} %") == 2
    assert "images/s on cpu" in out


@pytest.mark.parametrize("activations", ["float", "int8"])
def test_a_network_is_written_as_onnx_too(activations, runs, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    file, onnx = tmp_path / "model.safetensors", tmp_path / "model.onnx"
    flags = ["--onnx", str(onnx), "--activations", activations]
    assert pack.main([str(runs / "binary"), "-o", str(file), *flags]) == 0
    out = capsys.readouterr().out
    assert f"{onnx}, {onnx.stat().st_size:,} bytes" in out
    digits = mrfquant.data.DATASETS["digits"](None)
    images, _ = next(digits.ordered("test", 100))
    (logits,) = runtime.InferenceSession(onnx).run(None, {"images": images.numpy()})
    with torch.no_grad():
        expected = mrfquant.load(file)(images)
    if activations == "float":
        assert "verified     ONNX Runtime computes the same for 64 images of the test set" in out
        assert torch.allclose(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)
    else:
        top1 = RunFolder.open(runs / "binary").summary()["test_top1"]
        assert f"activations  float: test top-1 {top1:.2f} %; 8 bits: " in out
        assert (logits.argmax(1) == expected.argmax(1).numpy()).mean() > 0.97
        assert evaluation.main([str(file), "--activations", "int8"]) == 0
        assert "images/s on cpu" in capsys.readouterr().out

    pixels = (images[3, 0] * digits.std[0] + digits.mean[0]) * 255
    picture = pixels.round().clamp(0, 255).to(torch.uint8).numpy()
    (tmp_path / "image.pgm").write_bytes(b"P5\n28 28\n255\n" + picture.tobytes())
    monkeypatch.setattr("sys.argv", ["classify_onnx.py", str(onnx), str(tmp_path / "image.pgm")])
    runpy.run_path(str(ROOT / "docs" / "examples" / "classify_onnx.py"))
    assert capsys.readouterr().out.startswith(f"{int(expected[3].argmax())}  ")


def test_labels_are_counted_by_layer(runs, tmp_path, capsys):
    file, shares = tmp_path / "model.safetensors", tmp_path / "shares.json"
    assert pack.main([str(runs / "binary"), "-o", str(file)]) == 0
    capsys.readouterr()
    assert evaluation.main([str(file), "--layers", "--json", str(shares)]) == 0
    from_file = capsys.readouterr().out.splitlines()
    assert evaluation.main([str(runs / "binary"), "--layers"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == from_file[1:]
    weights = mrfquant.load(file).state_dict()["layers.1.weight"]
    share = 100 * (weights > 0).double().mean().item()
    (line,) = [line for line in from_file if line.startswith("layers.1.weight")]
    assert f"{100 - share:.1f} {share:.1f}" in line
    assert 100 * json.loads(shares.read_text())["layers.1.weight"][1] == pytest.approx(share)
    assert "300x784" in line


def test_the_bytes_of_scales_are_counted_by_layer(runs, capsys):
    assert evaluation.main([str(runs / "ternary"), "--layers"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("layers.1.weight")]
    assert "-1 0 1 x scale of 100" in line
    assert line.endswith(f" {300 * 784 // 4 + 4 * 300 * 8:,}")  # 784 inputs are seven runs of 100 and one of 84


def test_the_reader_of_the_description_reads(runs, tmp_path, monkeypatch):
    (reader,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/format.md").read_text(), re.DOTALL)
    assert len([line for line in reader.splitlines() if line.strip()]) <= 26
    monkeypatch.chdir(tmp_path)
    for name, flags in (
        ("binary", []),
        ("ternary", []),
        ("ternary", ["--base3"]),
        ("ternary", ["--base3", "--compress"]),
    ):
        assert pack.main([str(runs / name), "-o", "model.safetensors", *flags]) == 0
        found = {}
        exec(reader, found)  # our own text
        expected = PackedNetwork.read("model.safetensors").state_dict()
        assert found["tensors"].keys() == expected.keys()
        for key, tensor in expected.items():
            assert np.array_equal(found["tensors"][key], tensor.numpy()), key


def test_packing_leaves_gin_and_randomness_alone(runs):
    gin.clear_config()
    gin.parse_config(["LeNet5.width = 0.5"])
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    mrfquant.pack(runs / "binary")
    assert torch.equal(torch.rand(3), expected)
    assert gin.query_parameter("LeNet5.width") == 0.5
    gin.parse_config(["LeNet5.width = 0.6"])  # not locked
    assert Labelling(torch.nn.Linear(2, 2)).blocks == []  # the run's levels are not in force
    gin.clear_config()


def test_origins_that_make_no_sense(runs, tmp_path, capsys):
    network = mrfquant.pack(runs / "binary")
    for origin, message in (
        ({"dataset": ["digits"]}, "is for the data set ['digits'], known are"),
        ({"dataset": "digits", "temperature": "x"}, "gives the temperature 'x'"),
        ({"dataset": "digits", "temperature": 0}, "gives the temperature 0"),
        ({"data": {"loader": "byte_file", "file": "/proc/kmsg"}}, "asks for the data in /proc/kmsg, which is not in"),
        ({"data": {"loader": "byte_file", "file": "../../etc/passwd"}}, "if you trust it, allow it with --data"),
        ({"dataset": "cifar10", "stand_in": True}, "is for inputs of another shape than those of cifar10"),
    ):
        network.origin = origin
        network.write(tmp_path / "m")
        assert evaluation.main([str(tmp_path / "m")]) == 2
        assert message in capsys.readouterr().err


def test_bad_input_is_one_sentence_and_status_2(runs, tmp_path, capsys):
    junk = tmp_path / "junk"
    junk.write_bytes(b"junk")
    out = ["-o", str(tmp_path / "m")]
    for main, arguments, message in (
        (pack.main, [str(runs / "float"), *out], "is not quantized: there are no labels to pack"),
        (pack.main, [str(tmp_path), *out], "is not a run"),
        (pack.main, [str(runs / "binary"), *out, "--base3"], "--base3 is for three levels"),
        (pack.main, [str(runs / "binary"), *out, "--activations", "int8"], "give --onnx FILE, too"),
        (evaluation.main, [str(junk), "--device", "meta"], "not a whole safetensors file"),
        (evaluation.main, [str(junk)], "not a whole safetensors file"),
        (evaluation.main, [str(tmp_path / "none")], "is not there"),
        (evaluation.main, [str(junk), "--layers"], "not a whole safetensors file"),
    ):
        assert main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1


def test_any_packed_network_is_written_as_onnx(runs, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    network = mrfquant.pack(runs / "ternary", "base3")
    network.write(tmp_path / "m")
    model, images = mrfquant.load(tmp_path / "m"), torch.randn(5, 1, 28, 28)
    exported = mrfquant.export_onnx(model, tmp_path / "own.onnx", [images])
    assert (tmp_path / "own.onnx").read_bytes() == exported.data
    session = runtime.InferenceSession(exported.data)
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-4)
    with pytest.raises(mrfquant.BadInput, match="give a batch at least"):
        mrfquant.export_onnx(model, tmp_path / "none.onnx", [])


def test_a_recorded_labelling_packs_as_the_labelling_does():
    model = torch.nn.Linear(6, 4)
    labelling = Labelling(model, [-1, 0, 1], which="weights", scale="channel")
    with mrfquant.StraightThrough(labelling, torch.optim.Adam, start="weights").rounded():
        one = mrfquant.pack_model(model, labelling)
        two = mrfquant.pack_model(model, labels_of(labelling))
    assert torch.equal(one.state_dict()["weight"], two.state_dict()["weight"])
    assert one.parameters["weight"].nbytes == two.parameters["weight"].nbytes == 6 + 4 * 4
