"""TinyImageNet: a tiny folder with its layout, decoded, cached, damaged."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

from mrfquant.data import tinyimagenet
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput

module = importlib.import_module("mrfquant.data.tinyimagenet")

WNIDS = ["n02", "n01", "n03"]  # not in alphabetical order: the labels follow the file


def write_jpeg(path: Path, grey: int, mode: str = "RGB", size: tuple[int, int] = (64, 64)) -> None:
    """A uniform image, which JPEG keeps exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, grey if mode == "L" else (grey, grey, grey)).save(path, format="JPEG", quality=100)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Two training images per class, of brightness 10 * label + i, and four validation images."""
    folder = tmp_path / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            write_jpeg(
                folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * label + i, mode="L" if i else "RGB"
            )
    annotations = []
    for i, wnid in enumerate(["n03", "n02", "n01", "n03"]):
        write_jpeg(folder / "val" / "images" / f"val_{i}.JPEG", 100 + i)
        annotations.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in WNIDS))
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\ttailed frog\n")
    monkeypatch.setattr(module, "COUNTS", {"train": 6, "val": 4})
    return tmp_path


def test_images_labels_and_names_are_those_of_the_folder(root):
    dataset = tinyimagenet(root)
    assert dataset.shape == (3, 64, 64)
    assert dataset.classes == ("tailed frog", "goldfish, Carassius auratus", "n03")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    brightness = torch.tensor([0, 1, 10, 11, 20, 21])
    assert torch.equal(dataset.train.images.long(), brightness.view(6, 1, 1, 1).expand(6, 3, 64, 64))
    assert dataset.val.labels.tolist() == [2, 0, 1, 2]
    assert dataset.val.images[:, 0, 0, 0].tolist() == [100, 101, 102, 103]


def test_validation_images_are_the_test_images(root):
    dataset = tinyimagenet(root)
    assert dataset.test is dataset.val


def test_channels_and_rows_are_in_their_place(root):
    image = Image.new("RGB", (64, 64), (200, 0, 0))
    image.paste((0, 0, 200), (0, 32, 64, 64))  # the lower half is blue
    image.save(root / "tiny-imagenet-200" / "val" / "images" / "val_0.JPEG", quality=100, subsampling=0)
    pixels = tinyimagenet(root).val.images[0].float()
    assert pixels[0, :32].mean() > 190 > 10 > pixels[0, 32:].mean()
    assert pixels[2, 32:].mean() > 190 > 10 > pixels[2, :32].mean()


def test_second_load_needs_the_cache_alone(root):
    first = tinyimagenet(root)
    shutil.rmtree(root / "tiny-imagenet-200")
    second = tinyimagenet(root)
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.val.labels, second.val.labels)
    assert first.classes == second.classes


@pytest.mark.parametrize("keep", [0, 100, -1000])
def test_cache_cut_short_is_rebuilt(root, keep):
    expected = tinyimagenet(root)
    cache = root / "tiny-imagenet-200.npz"
    whole = cache.read_bytes()
    cache.write_bytes(whole[:keep])
    assert torch.equal(tinyimagenet(root).train.images, expected.train.images)
    assert len(cache.read_bytes()) == len(whole)


def test_altered_cache_is_rebuilt(root):
    expected = tinyimagenet(root)
    cache = root / "tiny-imagenet-200.npz"
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 1
    cache.write_bytes(content)
    assert torch.equal(tinyimagenet(root).train.images, expected.train.images)


def test_cache_of_another_size_is_rebuilt(root, monkeypatch):
    tinyimagenet(root)
    (root / "tiny-imagenet-200" / "val" / "images" / "val_3.JPEG").unlink()
    monkeypatch.setattr(module, "COUNTS", {"train": 6, "val": 3})
    assert len(tinyimagenet(root).val) == 3


def test_cache_that_holds_a_pickle_is_not_loaded(root):
    with open(root / "tiny-imagenet-200.npz", "wb") as file:
        np.savez(file, train_images=np.array([object()], dtype=object))
    assert len(tinyimagenet(root).train) == 6


def test_cache_that_cannot_be_written_is_done_without(root):
    (root / "tiny-imagenet-200.npz").mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert len(tinyimagenet(root).train) == 6


def test_incomplete_folder_is_refused(root):
    (root / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_1.JPEG").unlink()
    with pytest.raises(BadInput, match="train holds 5 images instead of 6: delete the folder tiny-imagenet-200"):
        tinyimagenet(root)
    assert not (root / "tiny-imagenet-200.npz").exists()


@pytest.mark.parametrize("keep", [0, 300])
def test_corrupt_image_is_named(root, keep):
    path = root / "tiny-imagenet-200" / "train" / "n03" / "images" / "n03_0.JPEG"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput, match=r"n03_0\.JPEG is not a readable JPEG"):
        tinyimagenet(root)


def test_image_of_another_size_is_named(root):
    write_jpeg(root / "tiny-imagenet-200" / "val" / "images" / "val_2.JPEG", 0, size=(32, 64))
    with pytest.raises(BadInput, match=r"val_2\.JPEG has 32x64 pixels instead of 64x64"):
        tinyimagenet(root)


@pytest.mark.parametrize("line", ["", "val_1.JPEG\n", "val_1.JPEG\tn99\t0\t0\t1\t1\n"])
def test_missing_annotation_is_named(root, line):
    path = root / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = line
    path.write_text("".join(lines))
    with pytest.raises(BadInput, match=r"val_annotations\.txt gives no class of wnids\.txt for val_1\.JPEG"):
        tinyimagenet(root)


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_missing_list_is_named(root, name):
    (root / "tiny-imagenet-200" / name).unlink()
    with pytest.raises(BadInput, match=f"{name} cannot be read"):
        tinyimagenet(root)


def test_without_network_the_missing_folder_is_named(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr(import_torchvision().datasets.utils, "download_and_extract_archive", fail)
    with pytest.raises(BadInput, match=r"lacks tiny-imagenet-200, .*cs231n\.stanford\.edu.*no route"):
        tinyimagenet(tmp_path)
