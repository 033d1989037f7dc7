"""MNIST: hand-written idx files, damaged files, and the real ones where they are present."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import struct
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from mrfquant.data import data_root, mnist
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput

module = importlib.import_module("mrfquant.data.mnist")  # the package's attribute of this name is the loader


def idx(*shape: int, first: int = 0) -> bytes:
    """An idx file of the values first, first + 1, ... (mod 10)."""
    count = torch.Size(shape).numel()
    values = bytes((first + i) % 10 for i in range(count))
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + values


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A root with an MNIST of 5 training, 2 validation and 3 test images."""
    contents = [idx(7, 28, 28), idx(7), idx(3, 28, 28, first=4), idx(3, first=4)]
    files = {}
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name, content in zip(module.FILES, contents, strict=True):
        (tmp_path / "MNIST" / "raw" / name).write_bytes(content)
        files[name] = (len(content), hashlib.md5(content).hexdigest(), "unused")
    monkeypatch.setattr(module, "FILES", files)
    monkeypatch.setattr(module, "VALIDATION", 2)
    return tmp_path


def test_files_are_read_as_written(small):
    dataset = mnist(small)
    pixels = torch.arange(7 * 784).remainder(10).view(7, 1, 28, 28)
    assert torch.equal(dataset.train.images.long(), pixels[:5])
    assert torch.equal(dataset.val.images.long(), pixels[5:])
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert dataset.val.labels.tolist() == [5, 6]
    assert dataset.test.labels.tolist() == [4, 5, 6]
    assert dataset.test.images[0, 0, 0, :3].tolist() == [4, 5, 6]


def test_compressed_files_serve_as_well(small):
    expected = mnist(small)
    for path in list((small / "MNIST" / "raw").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert torch.equal(mnist(small).train.images, expected.train.images)


def test_file_cut_short_is_refused(small):
    path = small / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"train-images-idx3-ubyte holds 5503 bytes instead of 5504: delete it"):
        mnist(small)


def test_altered_file_is_refused(small):
    path = small / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x09")
    with pytest.raises(BadInput, match="t10k-labels-idx1-ubyte has been altered"):
        mnist(small)


def test_without_network_the_missing_files_are_named(small, monkeypatch):
    def fail(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr(import_torchvision().datasets.utils, "download_and_extract_archive", fail)
    (small / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match=r"lacks MNIST/raw/t10k-labels-idx1-ubyte, and .*ossci-datasets.*no route"):
        mnist(small)


def test_checksums_of_the_downloads_are_torchvisions():
    resources = dict(import_torchvision().datasets.MNIST.resources)
    assert {f"{name}.gz": md5 for name, (_, _, md5) in module.FILES.items()} == resources


@pytest.mark.skipif(
    not all((data_root() / "MNIST" / "raw" / name).exists() for name in module.FILES), reason="MNIST is not here"
)
def test_real_mnist_is_as_published():
    dataset = mnist(data_root())
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (50_000, 10_000, 10_000)
    labels = torch.cat([dataset.train.labels, dataset.val.labels])
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = torch.cat([dataset.train.images, dataset.val.images]).float() / 255
    assert dataset.mean == (pytest.approx(pixels.mean().item(), abs=1e-4),)
    assert dataset.std == (pytest.approx(pixels.std().item(), abs=1e-4),)
