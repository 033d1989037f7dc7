"""A data set that does not hang together is refused; moving it keeps what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mrfquant.data import Images, Split
from mrfquant.errors import BadInput


def make_split(n: int = 6, shape: tuple[int, ...] = (3, 5, 4), classes: int = 3) -> Split:
    return Split(torch.zeros(n, *shape, dtype=torch.uint8), torch.arange(n) % classes)


def make_dataset(**changes) -> Images:
    dataset = Images(
        "toy", make_split(), make_split(), make_split(), (0.1, 0.2, 0.3), (1.0, 1.0, 1.0), ("a", "b", "c"), augment=None
    )
    return replace(dataset, **changes)


def test_shape_and_classes_are_those_of_the_images():
    dataset = make_dataset()
    assert dataset.shape == (3, 5, 4)
    assert dataset.num_classes == 3
    assert len(dataset.train) == 6
    assert not dataset.stand_in


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "images are float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"shape \(2, 4, 4\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32), "labels are int32"),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            r"expected int64 of shape \(2,\)",
        ),
    ],
)
def test_split_with_wrong_tensors_is_refused(images, labels, message):
    with pytest.raises(BadInput, match=message):
        Split(images, labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": True}, "augment is True, expected an Augmentation or None"),
        ({"mean": (0.5,)}, "mean"),
        ({"std": (0.5, 0.5, 0.0)}, "std"),
        ({"val": make_split(0)}, "the val split is empty"),
        ({"test": make_split(shape=(3, 4, 4))}, "test images have shape"),
        ({"val": make_split(classes=4)}, "val labels run from 0 to 3, expected 0 to 2"),
        ({"train": Split(make_split().images, torch.full((6,), -1))}, "train labels run from -1"),
    ],
)
def test_dataset_whose_parts_disagree_is_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        make_dataset(**changes)


def test_splits_that_share_images_still_share_them_after_a_move():
    val = make_split()
    moved = make_dataset(val=val, test=val).to("cpu")
    assert moved.test is moved.val


def test_move_keeps_name_and_images():
    dataset = make_dataset(stand_in=True)
    moved = dataset.to("cpu")
    assert moved.name == "toy"
    assert moved.stand_in
    assert torch.equal(moved.train.images, dataset.train.images)
