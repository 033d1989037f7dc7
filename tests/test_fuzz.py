"""Every reader against damaged and malicious files: it answers or refuses in a sentence, and never with a traceback.

An input is decided by the reader's name and its number: what fails is told with both and can be made again.
"""

import gzip
import json
import random
import warnings
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import mrfquant.training.experiment  # noqa: F401 - the names that configurations have
from mrfquant.config.gin_files import CONFIGS, Config
from mrfquant.config.search_space import read_space
from mrfquant.data.root import read_checked
from mrfquant.data.tinyimagenet import _decode_one, _read_cache
from mrfquant.errors import BadInput, RunFailed
from mrfquant.mrf import FactorGraph, uai
from mrfquant.packing import PackedNetwork, PackedParameter, load
from mrfquant.packing.file import _checksum
from mrfquant.reports.groups import check_groups, group_runs
from mrfquant.reports.page import page
from mrfquant.reports.runs import read_run
from mrfquant.reports.tables import csv_text, text_report
from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.storage.weights import read_weights

WORDS = [
    *(b"NaN", b"Infinity", b"-1", b"1e309", b"1e308", b"9" * 30, b"0", b"null", b"true", b"[", b"]", b"{", b"}"),
    *(b"\\ud800", b"\x1b[2J", b"\xff\xfe", b"\x00", b"\r\n", b'"', b"'", b"=", b"@", b"%", b"include ", b"import "),
    *(
        b"[" * 2000,
        b"(" * 300,
        b'{"a":' * 1500,
        b"65536 ",
        b" ",
        b",",
        b":",
        b"..",
        b"/dev/zero",
        b"from __gin__ import x",
    ),
]


def mutated(data, rng):
    """The bytes with one to four changes."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 16, 200))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = rng.choice(WORDS)
        elif kind == 4:
            data[at : at + rng.randrange(4)] = rng.choice(WORDS)
        else:
            source = rng.randrange(len(data) + 1)
            data[at:at] = data[source : source + length]
    return bytes(data) if rng.random() > 0.05 else bytes(data[: rng.randrange(len(data) + 1)])


def read_everything(folder):
    """What `compare` does with a run."""
    told = []
    runs = [read_run(folder, told.append), read_run(folder.parent / "whole", told.append)]
    groups = group_runs(runs)
    check_groups(groups, None, told.append)
    return text_report(groups, None, 100) + csv_text(runs) + page(groups, None, told)


def read_packed(path):
    """A packed file whose metadata are the lines of a text, with the right checksum; as far as a network."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    metadata = dict(zip(("network", "input_info", "blocks", "origin"), lines, strict=False)) | {"format": "mrfquant 1"}
    tensors = {"a": torch.zeros(1, dtype=torch.uint8), "b": torch.ones(2)}
    metadata["sha256"] = _checksum(metadata, tensors)
    save_file(tensors, path.with_suffix(".safetensors"), metadata)
    _ = PackedNetwork.read(path.with_suffix(".safetensors")).title
    return load(path.with_suffix(".safetensors"), nn.ParameterDict({"a": torch.ones(2, 2), "b": torch.ones(2)}))


def metadata(path):
    images = '{"mean":[0.5],"std":[0.5],"classes":["x"]}'
    path.write_text(
        f'["LeNet300",{{"shape":[1,8,8],"classes":10}}]\n{images}\n[[[-1,1],"bits",{{"a":[2,2]}}]]\n{{"run":"x"}}'
    )


def read_states(path):
    checkpoints = Checkpoints(path.parent)
    for aside in path.parent.glob("*.damaged*"):
        aside.unlink()
    return checkpoints.newest(lambda text: None)


def cache(path):
    np.savez(path, train_images=np.zeros((2, 3), np.uint8), classes=np.array(["a"]))


def checkpoint(path):
    Checkpoints(path.parent).save(1, {"w": torch.ones(9), "best": None, "losses": [1.0], "name": "x"}, None)


def gzipped(path):
    path.write_bytes(gzip.compress(bytes(range(256))))


def packed(path):
    parameters = {
        "a": PackedParameter.of(torch.tensor([[1.0, -1.0, 1.0]]), (-1.0, 1.0)),
        "b": PackedParameter.of(torch.tensor([[0.0, 2.0]]), (-1.0, 0.0, 1.0), "base3", torch.tensor([2.0])),
    }
    images = {"mean": [0.5], "std": [0.5], "classes": ["x"]}
    PackedNetwork("LeNet300", {"shape": [1, 8, 8]}, images, parameters, {"c": torch.ones(2)}).write(path)


def records(path):
    lines = [{"iteration": i, "loss": 1 / i, "val_top1": 9.0 * i, "entropy": 0.5, "beta": 1.5**i} for i in range(1, 9)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def summary(path):
    fields = {"method": "PMF", "model": "x", "dataset": "y", "seed": 0, "bits": 1, "parameters": 9, "labelled": 9}
    fields |= {"test_top1": 90.0, "best_val_top1": 91.0, "seconds": 3.5, "steps_per_second": 9.0, "stand_in": False}
    fields |= {"metric": {"name": "top1", "title": "top-1", "higher": True, "unit": "%", "digits": 2}, "iterations": 8}
    path.write_text(json.dumps(fields))


def operative(path):
    path.write_text("# Parameters\nExperiment.seed = 0\nGeometric.rho = 1.2\nx = \\\n    [1, 2]\n")


def field(path):
    uai.write_model(path, FactorGraph([2, 3], [([0, 1], torch.rand(2, 3)), ([1], torch.rand(3))]))


def image(path):
    Image.new("RGB", (64, 64)).save(path, "JPEG")


def gin_file(path):
    path.write_bytes((CONFIGS / "pmf_lenet300_digits.gin").read_bytes())


def space(path):
    path.write_bytes((CONFIGS / "spaces" / "pmf.space").read_bytes())


def weights(path):
    torch.save({"a": torch.ones(5), "b": torch.zeros(2, 2)}, path)


def old_weights(path):
    torch.save({"a": torch.ones(5)}, path, _use_new_zipfile_serialization=False)


READERS = {  # name: the file, how a whole one is made, how it is read
    "gin": ("my.gin", gin_file, lambda path: Config(path, trusted=False)),
    "set": ("set", lambda p: p.write_text("Labelling.levels = [-1, 0.5, 'x', @LeNet300()]"),
            lambda path: Config(None, [path.read_bytes().decode("utf-8", "replace")])),
    "space": ("my.space", space, read_space),
    "uai": ("x.uai", field, uai.read_model),
    "evidence": ("x.evid", lambda p: p.write_text("2 0 1 1 2\n"), uai.read_evidence),
    "mar": ("x.mar", lambda p: uai.write_mar(p, [[0.5, 0.5], [0.1, 0.9]]), uai.read_mar),
    "map": ("x.map", lambda p: uai.write_map(p, [0, 2, 1]), uai.read_map),
    "pr": ("x.pr", lambda p: uai.write_pr(p, 3.5), uai.read_pr),
    "packed": ("x.safetensors", packed, PackedNetwork.read),
    "packed metadata": ("x.lines", metadata, read_packed),
    "pt": ("x.pt", weights, read_weights),
    "old pt": ("x.pt", old_weights, read_weights),
    "safetensors": ("x.safetensors", lambda p: save_file({"a": torch.ones(3)}, p), read_weights),
    "checkpoint": ("step-00000001.pt", checkpoint, read_states),
    "summary": ("run/summary.json", summary, lambda path: read_everything(path.parent)),
    "identity": ("run/identity.json", summary, lambda path: read_everything(path.parent)),
    "metrics": ("run/metrics.jsonl", records, lambda path: read_everything(path.parent)),
    "operative": ("run/operative.gin", operative, lambda path: read_everything(path.parent)),
    "gz": ("x.gz", gzipped, lambda path: read_checked(path, 256)),
    "cache": ("x.npz", cache, _read_cache),
    "jpeg": ("x.JPEG", image, _decode_one),
}  # fmt: skip


def fuzz(name, folder, numbers):
    """Feed a reader; gives how many inputs it has read, and how many refused."""
    file, make, read = READERS[name]
    for run in ("run", "whole"):
        (folder / run).mkdir()
        for known, one in (("summary.json", summary), ("metrics.jsonl", records), ("operative.gin", operative)):
            one(folder / run / known)
    path = folder / file
    make(path)
    whole = path.read_bytes()
    read(path)  # it is one
    taken = 0
    for number in numbers:
        path.write_bytes(mutated(whole, random.Random(f"{name} {number}")))
        try:
            with redirect_stdout(StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(path)
            taken += 1
        except (BadInput, RunFailed) as error:
            if len(str(error)) > 1000:
                raise AssertionError(f"reader {name!r}, input {number}: a sentence of {len(str(error))}") from error
        except Exception as error:
            raise AssertionError(f"reader {name!r}, input {number}: {type(error).__name__}: {error}") from error
    return taken, len(numbers) - taken


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_gives_an_answer_or_a_sentence(name, tmp_path):
    fuzz(name, tmp_path, range(150))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_damaged_files_give_an_answer_or_a_sentence(name, tmp_path):
    taken, refused = fuzz(name, tmp_path, range(10_000))
    print(f"{name}: {taken} read, {refused} refused")
