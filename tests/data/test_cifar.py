"""CIFAR: hand-written record files, damaged files, and the real ones where they are present."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from mrfquant.data import cifar10, cifar100, data_root
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput

module = importlib.import_module("mrfquant.data.cifar")


def record(*labels: int, value: int) -> bytes:
    """Red is all `value`, green `value + 1`, blue counts 0 to 255 over and over."""
    return bytes(labels) + bytes([value]) * 1024 + bytes([value + 1]) * 1024 + bytes(range(256)) * 4


def write(root: Path, name: str, records: list[bytes]) -> tuple[int, str]:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(records))
    return len(records), hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def small10(tmp_path, monkeypatch) -> Path:
    """Six files of two records; record i of the data set has label i mod 10 and red value i."""
    files = {
        name: write(tmp_path, name, [record((2 * k + j) % 10, value=2 * k + j) for j in range(2)])
        for k, name in enumerate(module.FILES10)
    }
    monkeypatch.setattr(module, "FILES10", files)
    monkeypatch.setattr(module, "VALIDATION", 3)
    return tmp_path


@pytest.fixture
def small100(tmp_path, monkeypatch) -> Path:
    """Five training records and two test records with coarse label 19 and fine label 90 + i."""
    names = list(module.FILES100)
    write(tmp_path, names[0], [record(19, 90 + i, value=i) for i in range(5)])
    write(tmp_path, names[1], [record(19, 90 + i, value=i) for i in range(5, 7)])
    monkeypatch.setattr(module, "FILES100", {names[0]: (5, None), names[1]: (2, None)})
    monkeypatch.setattr(module, "VALIDATION", 1)
    return tmp_path


def check_pixels(images: torch.Tensor, values: list[int]) -> None:
    assert images.shape == (len(values), 3, 32, 32)
    for image, value in zip(images, values, strict=True):
        assert (image[0] == value).all()
        assert (image[1] == value + 1).all()
        assert torch.equal(image[2].flatten().long(), torch.arange(1024) % 256)  # rows from top to bottom


def test_cifar10_is_read_as_written(small10):
    dataset = cifar10(small10)
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert dataset.val.labels.tolist() == [7, 8, 9]
    assert dataset.test.labels.tolist() == [0, 1]
    check_pixels(dataset.train.images, list(range(7)))
    check_pixels(dataset.val.images, [7, 8, 9])
    check_pixels(dataset.test.images, [10, 11])


def test_cifar10_may_validate_on_half_of_the_test_images(small10):
    dataset = cifar10(small10, validation="test")
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    check_pixels(dataset.val.images, [10])
    check_pixels(dataset.test.images, [11])


def test_cifar100_takes_the_fine_label(small100):
    dataset = cifar100(small100)
    assert dataset.train.labels.tolist() == [90, 91, 92, 93]
    assert dataset.val.labels.tolist() == [94]
    assert dataset.test.labels.tolist() == [95, 96]
    check_pixels(dataset.test.images, [5, 6])


def test_class_names_are_complete():
    assert len(set(module.CIFAR10.classes)) == 10
    assert len(set(module.CIFAR100.classes)) == 100
    assert module.CIFAR100.classes == tuple(sorted(module.CIFAR100.classes))  # as in the official list


def test_file_cut_short_is_refused(small10, small100):
    path = small10 / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(BadInput, match=r"data_batch_3\.bin holds 5146 bytes instead of 6146: delete it"):
        cifar10(small10)
    path = small100 / "cifar-100-binary" / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"test\.bin holds 6147 bytes instead of 6148"):
        cifar100(small100)


def test_altered_file_is_refused(small10):
    path = small10 / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(BadInput, match=r"test_batch\.bin has been altered"):
        cifar10(small10)


@pytest.mark.parametrize("labels", [(20, 5), (3, 100)])
def test_cifar100_label_out_of_range_is_refused(small100, labels):
    write(small100, "cifar-100-binary/test.bin", [record(*labels, value=0), record(0, 0, value=0)])
    with pytest.raises(BadInput, match=r"test\.bin holds labels beyond the 100 classes: delete it"):
        cifar100(small100)


@pytest.mark.parametrize(
    ("loader", "file", "url"),
    [
        (cifar10, "cifar-10-batches-bin/data_batch_1.bin", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        (cifar100, "cifar-100-binary/train.bin", "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"),
    ],
)
def test_without_network_the_missing_files_are_named(tmp_path, monkeypatch, loader, file, url):
    def fail(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr(import_torchvision().datasets.utils, "download_and_extract_archive", fail)
    with pytest.raises(BadInput) as caught:
        loader(tmp_path)
    for part in (str(tmp_path), file, url, "no route", "gin/ref_lenet300_digits.gin"):
        assert part in str(caught.value)


@pytest.mark.skipif(not all((data_root() / name).exists() for name in module.FILES10), reason="CIFAR-10 is not here")
def test_real_cifar10_is_as_published():
    dataset = cifar10(data_root())
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (45_000, 5_000, 10_000)
    labels = torch.cat([dataset.train.labels, dataset.val.labels])
    assert labels.bincount().tolist() == [5000] * 10
    assert dataset.test.labels.bincount().tolist() == [1000] * 10
    histogram = torch.stack([channel.flatten().bincount(minlength=256) for channel in dataset.train.images.unbind(1)])
    histogram = histogram.double() / histogram.sum(1, keepdim=True)  # exact moments without a float copy of the images
    values = torch.arange(256) / 255
    mean = histogram @ values.double()
    std = (histogram @ values.double() ** 2 - mean**2).sqrt()
    torch.testing.assert_close(mean, torch.tensor(dataset.mean).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(std, torch.tensor(dataset.std).double(), atol=1e-3, rtol=0)
