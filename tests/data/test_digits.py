"""The embedded digits: real images, always the same splits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mrfquant.data import Images, Split, digits
from mrfquant.data.digits import FILE


@pytest.fixture(scope="module")
def dataset() -> Images:
    return digits(Path("not used"))


def test_sizes_and_shape(dataset):
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (1197, 300, 300)
    assert dataset.shape == (1, 28, 28)
    assert dataset.num_classes == 10
    assert not dataset.augment


def from_scikit_learn() -> list[Split]:
    """The splits as scikit-learn stratifies them; digits.npz has the source and which image is in which."""
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).float()[:, None] * (255 / 16)
    images = F.interpolate(pixels, size=(28, 28), mode="bilinear").round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    rest, test = train_test_split(range(len(labels)), test_size=300, stratify=labels, random_state=0)
    train, val = train_test_split(rest, test_size=300, stratify=labels[rest], random_state=0)
    return [Split(images[part], labels[part]) for part in (train, val, test)]


def test_they_are_scikit_learns_to_the_bit(dataset):
    for split, expected in zip((dataset.train, dataset.val, dataset.test), from_scikit_learn(), strict=True):
        for ours, theirs in ((split.images, expected.images), (split.labels, expected.labels)):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


def test_the_file_is_small():
    assert FILE.stat().st_size < 100_000


def test_splits_are_disjoint_and_complete(dataset):
    images = torch.cat([dataset.train.images, dataset.val.images, dataset.test.images])
    labels = torch.cat([dataset.train.labels, dataset.val.labels, dataset.test.labels])
    assert len(images.flatten(1).unique(dim=0)) == len(images) == 1797  # no two source images are alike
    assert torch.equal(labels.bincount(), torch.from_numpy(load_digits().target).bincount())


def test_classes_are_balanced_in_every_split(dataset):
    for split in (dataset.train, dataset.val, dataset.test):
        share = split.labels.bincount(minlength=10) / len(split)
        assert (share - 0.1).abs().max() < 0.01


def test_normalisation_constants_are_those_of_the_training_images(dataset):
    pixels = dataset.train.images.double() / 255
    assert dataset.mean == (pytest.approx(pixels.mean().item(), abs=5e-5),)
    assert dataset.std == (pytest.approx(pixels.std().item(), abs=5e-5),)


def test_enlarged_digits_average_back_to_the_originals(dataset):
    # 28 = 3.5 * 8, so a bilinear enlargement keeps the brightness of an image up to its borders and rounding.
    originals = torch.from_numpy(load_digits().images).mean((1, 2)) / 16
    enlarged = torch.cat([dataset.train.images, dataset.val.images, dataset.test.images]).double().mean((1, 2, 3)) / 255
    torch.testing.assert_close(enlarged.sort().values, originals.sort().values, atol=0.01, rtol=0)


def test_every_call_gives_the_same(dataset):
    again = digits(Path("elsewhere"))
    assert torch.equal(again.train.images, dataset.train.images)
    assert torch.equal(again.test.labels, dataset.test.labels)
