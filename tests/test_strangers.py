"""Files and folders of strangers: nothing in them is executed, obeyed, followed or allocated without bounds."""

import csv
import gzip
import hashlib
import io
import json
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mrfquant.commands import eval as evaluation
from mrfquant.commands import pack, sweep
from mrfquant.commands import round as rounding
from mrfquant.commands import run as running
from mrfquant.config.gin_files import CONFIGS, Config
from mrfquant.data.root import read_checked
from mrfquant.data.tinyimagenet import _decode_one, _read_cache
from mrfquant.errors import BadInput
from mrfquant.mrf.uai import read_model
from mrfquant.packing import PackedNetwork, PackedParameter
from mrfquant.reports.runs import Run
from mrfquant.reports.tables import csv_text
from mrfquant.storage.run_folder import environment
from mrfquant.storage.weights import read_weights
from mrfquant.text import redacted

SECRET = "postgresql://me:hunter2@db.example:5432/studies"


# Secrets


@pytest.mark.parametrize(
    "url",
    [
        SECRET,
        "mysql+pymysql://me:hunter2@db/x",
        "postgresql://:hunter2@db/x",
        "postgresql://me:a/hunter2:@b@db/x",
        "postgresql://db/x?user=me&password=hunter2",
        "postgresql://db/x?sslpassword=hunter2&user=me",
    ],
)
def test_passwords_of_urls_are_taken_out(url):
    assert "hunter2" not in redacted(f"--storage {url} --trials 3")
    assert redacted(f"--storage {url} --trials 3").endswith("--trials 3")


@pytest.mark.parametrize("text", ["sqlite:////tmp/study.db", "postgresql://me@db/x", "--set 'A.x = 3' a@b.example"])
def test_what_has_no_password_stays(text):
    assert redacted(text) == text


def test_the_note_of_the_command_has_no_password(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["mrfquant", "sweep", "--storage", SECRET])
    assert (
        environment(torch.device("cpu"))["command"]
        == "mrfquant sweep --storage postgresql://me:***@db.example:5432/studies"
    )


SWEEP = ["--gin", "gin/pmf_lenet300_digits.gin", "--space", str(CONFIGS / "spaces" / "pmf.space"), "--trials", "1"]


def test_a_password_on_the_command_line_is_refused_and_not_repeated(tmp_path, capsys):
    assert sweep.main([*SWEEP, "--out", str(tmp_path), "--storage", SECRET]) == 2
    err = capsys.readouterr().err
    assert "hunter2" not in err
    assert "MRFQUANT_STORAGE" in err


@pytest.mark.parametrize("given", ["flag", "environment"])
def test_a_password_with_a_blank_is_not_repeated(given, tmp_path, capsys, monkeypatch):
    url = "postgresql://me:hun ter2@db/x"
    if given == "environment":
        monkeypatch.setenv("MRFQUANT_STORAGE", url)
    assert sweep.main([*SWEEP, "--out", str(tmp_path), *(["--storage", url] if given == "flag" else [])]) == 2
    err = capsys.readouterr().err
    assert "has a blank" in err
    assert "ter2" not in err


def test_a_password_from_the_environment_shows_nowhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MRFQUANT_STORAGE", "nonsense+x://me:hunter2@db/x")
    assert sweep.main([*SWEEP, "--out", str(tmp_path / "sweep")]) == 2
    err = capsys.readouterr().err
    assert "cannot open the storage nonsense+x://me:***@db/x" in err
    assert "hunter2" not in err
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# Code


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A finished run whose configuration names a module that leaves a trace when it is imported."""
    folder = tmp_path / "foreign"
    short = ["--set", "Trainer.iterations = 4", "--set", "Trainer.eval_interval = 4"]
    assert running.main(["--gin", "gin/pmf_lenet300_digits.gin", "--smoke", *short, "--out", str(folder)]) == 0
    (tmp_path / "evil_parts.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    (folder / "config.gin").write_text("import evil_parts\n" + (folder / "config.gin").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("evil_parts", None)


def test_commands_that_read_a_run_execute_nothing_of_it_unless_allowed(foreign, tmp_path, capsys):
    assert evaluation.main([str(foreign), "--layers"]) == 0  # the checkpoint says all that it takes
    assert pack.main([str(foreign), "-o", str(tmp_path / "model.safetensors")]) == 0
    commands = [
        (evaluation.main, [str(foreign)]),
        (rounding.main, ["--run", str(foreign)]),
    ]
    for main, words in commands:
        assert main(words) == 2
        assert "if you trust it, allow it with --import evil_parts" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert evaluation.main([str(foreign), "--samples", "1", "--import", "evil_parts"]) == 0
    assert (tmp_path / "executed").exists()


def test_a_module_behind_an_include_is_refused_too(tmp_path, monkeypatch):
    (tmp_path / "inner.gin").write_text("import antigravity\n")
    (tmp_path / "outer.gin").write_text("include 'inner.gin'\n")
    monkeypatch.setattr("mrfquant.config.gin_files.import_plugin", lambda *a: pytest.fail("executed"))
    with pytest.raises(BadInput, match="asks for the module antigravity"):
        Config(tmp_path / "outer.gin", trusted=False)


# What is printed


def packed(**changes):
    weights = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    parameter = PackedParameter.of(weights, (-1.0, 1.0))
    network = PackedNetwork("Mine", {}, {"mean": [], "std": [], "classes": []}, {"w": parameter}, {})
    for name, value in changes.items():
        setattr(network, name, value)
    return network


def test_escapes_of_a_packed_file_do_not_reach_the_terminal(tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    network = packed(origin={"run": "\x1b]0;owned\x07", "\x1b[2J": 1}, floats={"\x1b[31mbias": torch.ones(1)})
    network.write(file)
    assert evaluation.main([str(file), "--layers"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    network.input_info = {"mean": [1.0], "std": [], "classes": []}
    network.parameters = {"\x1b[31m": packed().parameters["w"]}
    network.write(file)
    assert evaluation.main([str(file), "--layers"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    fields = {"method": "=cmd|'/c calc'!A1", "note": "@SUM(A1)", "model": "+1+1", "test_top1": -0.5, "half": "\ud800"}
    run = Run(tmp_path, {**fields, "=1+1": "x"}, {}, [], True)
    text = csv_text([run])
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["method"], row["note"], row["model"]) == ("'=cmd|'/c calc'!A1", "'@SUM(A1)", "'+1+1")
    assert float(row["test_top1"]) == -0.5
    assert "'=1+1" in row
    text.encode()
    for start in ("\r", "\n", "x\r", "\r\n", "\t", " ", "\x0b", "\u2028"):
        lines = csv_text([Run(tmp_path, {"method": f"{start}=2+2"}, {}, [], True)]).splitlines()
        assert len(lines) == 2
        assert not any(cell.lstrip().startswith("=") for cell in lines[1].split(","))


# What is allocated


def test_levels_and_values_that_no_float32_holds_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    data = packed().parameters["w"].data
    for levels, scale in (((-1e308, 1e308), None), ((-1e30, 1e30), torch.tensor([1e30]))):
        packed(parameters={"w": PackedParameter(data, (2, 2), levels, scale=scale)}).write(file)
        with pytest.raises(BadInput, match="beyond what a float32 can hold"):
            PackedNetwork.read(file)
    packed(floats={"b": torch.tensor([torch.nan])}).write(file)
    with pytest.raises(BadInput, match="not finite"):
        PackedNetwork.read(file)


def test_a_gzip_bomb_is_not_expanded(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    asked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: (asked.append(size), read(self, size))[1])
    with pytest.raises(BadInput, match="more than 1000 bytes instead of 1000"):
        read_checked(path, 1000)
    assert asked == [1001]


def test_a_compressed_cache_of_images_is_not_expanded(tmp_path, monkeypatch):
    path = tmp_path / "cache.npz"
    np.savez_compressed(path, train_images=np.zeros(10**7, np.uint8))
    monkeypatch.setattr(np, "load", lambda *a, **k: pytest.fail("expanded"))
    assert _read_cache(path) is None


def test_an_image_of_another_size_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    Image.new("RGB", (640, 64)).save(tmp_path / "x.JPEG")
    monkeypatch.setattr(Image.Image, "convert", lambda *a: pytest.fail("decoded"))
    with pytest.raises(BadInput, match="640x64 pixels instead of 64x64"):
        _decode_one(tmp_path / "x.JPEG")


def test_a_gin_file_without_an_end_is_not_read(tmp_path):
    with open(tmp_path / "config.gin", "wb") as file:
        file.truncate(2**34)
    with pytest.raises(BadInput, match=r"config\.gin has more than 4,194,304 bytes"):
        Config(tmp_path / "config.gin")
    (tmp_path / "outer.gin").write_text("include 'config.gin'")
    with pytest.raises(BadInput, match=r"config\.gin has more than 4,194,304 bytes"):
        Config(tmp_path / "outer.gin")


def test_few_words_cannot_ask_for_many_labels(tmp_path):
    n = 8000
    (tmp_path / "x.uai").write_text(f"MARKOV {n} {'65536 ' * n} 0")
    with pytest.raises(BadInput, match="524,288,000 labels in all, expected at most"):
        read_model(tmp_path / "x.uai")


def test_a_field_from_a_device_without_an_end_is_refused():
    with pytest.raises(BadInput, match=r"has the byte b'\\x00' at 0"):
        read_model("/dev/zero")


# Weights


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"w": torch.ones(1000)}, path)
    return path


def test_a_flipped_bit_in_pt_weights_is_noticed(weights):
    assert read_weights(weights)["w"].sum() == 1000
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BadInput, match="truncated or damaged"):
        read_weights(weights)


def test_weights_of_the_format_before_archives_are_read(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert read_weights(tmp_path / "old.pt")["w"].tolist() == [1, 1, 1]


def test_compressed_pt_weights_are_not_expanded(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(10**6))
    with pytest.raises(BadInput, match="it is compressed"):
        read_weights(tmp_path / "bomb.pt")


def test_a_digest_beside_safetensors_is_compared(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(3)}, path)
    beside = tmp_path / "model.safetensors.sha256"
    beside.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    assert read_weights(path)["w"].tolist() == [1, 1, 1]
    for content in ("0" * 64, "", "\x00"):
        beside.write_text(content)
        with pytest.raises(BadInput, match=r"its digest is not that of model.safetensors.sha256"):
            read_weights(path)


@pytest.mark.parametrize("kind", ["complex", "sparse"])
def test_weights_that_are_no_plain_numbers_are_refused(tmp_path, kind):
    made = {
        "complex": lambda: torch.ones(3, dtype=torch.complex64),
        "sparse": lambda: torch.ones(3).to_sparse(),
    }
    torch.save({"w": made[kind]()}, tmp_path / "w.pt")
    with pytest.raises(BadInput, match=f"w is {kind}|cannot be read"):
        read_weights(tmp_path / "w.pt")


def test_a_summary_of_other_types_is_told(tmp_path):
    """Metrics of a stranger's summary neither obey nor break."""
    from mrfquant.metric import TOP1, Metric

    good = {"name": "nll", "title": "loss", "higher": False}
    assert Metric.of({"metric": good}).name == "nll"
    for change in ({"digits": 10**9}, {"title": "\x1b[2J"}, {"higher": []}, {"name": 3}, {"unit": None}, {"x": 1}):
        assert Metric.of(json.loads(json.dumps({"metric": {**good, **change}}))) is TOP1
