"""Data sets: idx and CIFAR files whose checksums are right, archives, images and texts."""

import gzip
import hashlib
import importlib
import struct

import numpy as np
import pytest
from PIL import Image

from mrfquant.data import byte_file, cifar10, cifar100, mnist, text_file
from mrfquant.data.root import read_checked
from mrfquant.data.tinyimagenet import _decode_one, _read_cache


def cache(path):
    np.savez(path, train_images=np.zeros((2, 3), np.uint8), classes=np.array(["a"]))


def gzipped(path):
    path.write_bytes(gzip.compress(bytes(range(256))))


def image(path):
    Image.new("RGB", (64, 64)).save(path, "JPEG")


READERS = {  # name: the file, how a whole one is made, how it is read
    "gz": ("x.gz", gzipped, lambda path: read_checked(path, 256)),
    "cache": ("x.npz", cache, _read_cache),
    "jpeg": ("x.JPEG", image, _decode_one),
    "text": ("x.txt", lambda p: p.write_text("häßlich? schön! " * 30), lambda p: text_file(p.parent, p.name, 4)),
    "bytes": ("x.bin", lambda p: p.write_bytes(bytes(300)), lambda p: byte_file(p.parent, p.name, 4)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_of_data_gives_an_answer_or_a_sentence(name, fuzz, tmp_path):
    file, make, read = READERS[name]
    make(tmp_path / file)
    fuzz(name, tmp_path / file, read)


def known(path, name):
    """Size and md5 of a file as it is, as if it had been published so: its reader sees all of it."""
    data = (path / name).read_bytes()
    return len(data), hashlib.md5(data).hexdigest(), "unused"


@pytest.mark.parametrize("number", range(4))
def test_a_damaged_idx_file_gives_a_data_set_or_a_sentence(number, fuzz, tmp_path, monkeypatch):
    module = importlib.import_module("mrfquant.data.mnist")  # the package's attribute of this name is the loader
    monkeypatch.setattr(module, "VALIDATION", 2)
    (folder := tmp_path / "MNIST" / "raw").mkdir(parents=True)
    names = list(module.FILES)
    for name, shape in zip(names, [(5, 28, 28), (5,), (3, 28, 28), (3,)], strict=True):
        header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        (folder / name).write_bytes(header + bytes(int(np.prod(shape))))

    def read(path):
        monkeypatch.setattr(module, "FILES", {name: known(folder, name) for name in names})
        return mnist(tmp_path)

    fuzz(f"idx {number}", folder / names[number], read)


@pytest.mark.parametrize(("loader", "files"), [(cifar10, "FILES10"), (cifar100, "FILES100")])
def test_a_damaged_file_of_cifar_gives_a_data_set_or_a_sentence(loader, files, fuzz, tmp_path, monkeypatch):
    module = importlib.import_module("mrfquant.data.cifar")
    monkeypatch.setattr(module, "VALIDATION", 1)
    names = list(getattr(module, files))
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(2 * (3072 + (1 if loader is cifar10 else 2))))

    def read(path):
        monkeypatch.setattr(module, files, {name: (2, known(tmp_path, name)[1]) for name in names})
        return loader(tmp_path)

    fuzz(files, tmp_path / names[0], read)
