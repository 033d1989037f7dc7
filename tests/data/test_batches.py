"""Batches against a slow loop over single images, and the stream's one-integer state against an unbroken stream."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrfquant.data import Images, Split, normalise
from mrfquant.data.batches import epoch_generator
from mrfquant.data.image_batches import Augmentation, ImageBatches
from mrfquant.errors import BadInput

MEAN, STD = (0.4, 0.5), (0.2, 0.3)
SIZE, BATCH = 23, 6  # 3 batches per epoch, 5 images left over
PER_EPOCH = SIZE // BATCH
SIDES = (7, 5)
AUGMENTATION = Augmentation()


def make_split() -> Split:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (SIZE, 2, *SIDES), dtype=torch.uint8, generator=generator)
    return Split(images, torch.arange(SIZE))  # the label tells the image


@pytest.fixture
def split() -> Split:
    return make_split()


def draw_epoch(size: int, seed: int, epoch: int, augment: Augmentation = AUGMENTATION) -> torch.Tensor:
    generator = epoch_generator(seed, epoch)
    return torch.cat([torch.randperm(size, generator=generator)[None], augment.draw(size, SIDES, generator)])


def stream(split: Split, augment: Augmentation | None = AUGMENTATION, **kwargs) -> ImageBatches:
    return ImageBatches(split.images, split.labels, BATCH, MEAN, STD, augment, seed=3, **kwargs)


def take(batches: ImageBatches, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(itertools.islice(batches, count))


def assert_same(left, right) -> None:
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def slow_normalise(images: np.ndarray) -> np.ndarray:
    """float64, (n, c, h, w), as the definition reads."""
    mean, std = (np.array(values).reshape(1, -1, 1, 1) for values in (MEAN, STD))
    return (images / 255 - mean) / std


def test_normalise_is_its_definition(split):
    expected = slow_normalise(split.images.numpy())
    result = normalise(split.images, MEAN, STD)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(normalise(split.images, MEAN, STD, torch.float64).numpy(), expected, rtol=1e-12)


def test_normalise_refuses_images_that_are_not_bytes(split):
    with pytest.raises(BadInput, match="uint8"):
        normalise(split.images.float(), MEAN, STD)


def test_an_epoch_gives_each_image_at_most_once_and_every_epoch_another_order(split):
    batches = stream(split, augment=None)
    epochs = [torch.cat([labels for _, labels in take(batches, PER_EPOCH)]).tolist() for _ in range(4)]
    for epoch in epochs:
        assert len(set(epoch)) == PER_EPOCH * BATCH
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_every_image_is_seen_in_the_long_run(split):
    labels = torch.cat([labels for _, labels in take(stream(split), 20 * PER_EPOCH)])
    assert set(labels.tolist()) == set(range(SIZE))


def test_plain_batches_are_the_normalised_images_of_their_labels(split):
    for images, labels in take(stream(split, augment=None), 2 * PER_EPOCH):
        assert images.dtype == torch.float32
        assert torch.equal(images, normalise(split.images[labels], MEAN, STD))


@pytest.mark.parametrize(
    ("augment", "mode"),
    [
        (AUGMENTATION, "constant"),
        (Augmentation(pad=0), "constant"),
        (Augmentation(2, "reflection"), "reflect"),
        (Augmentation(4, "reflection"), "reflect"),  # as far as 5 pixels allow
        (Augmentation(1, cutout=2), "constant"),
        (Augmentation(1, cutout=5), "constant"),  # all rows
    ],
)
def test_augmented_batches_are_those_of_a_loop_over_single_images(split, augment, mode):
    batches = take(stream(split, augment), 3 * PER_EPOCH)
    _, _, h, w = split.images.shape
    for epoch in range(3):
        order, tops, lefts, flips, *squares = draw_epoch(SIZE, 3, epoch, augment).tolist()
        for position in range(PER_EPOCH * BATCH):
            image = split.images[order[position]].numpy()
            image = np.pad(image, ((0, 0), (augment.pad,) * 2, (augment.pad,) * 2), mode=mode)
            top, left = tops[position], lefts[position]
            image = image[:, top : top + h, left : left + w]
            if flips[position]:
                image = image[:, :, ::-1]
            expected = slow_normalise(image[None])[0]
            if squares:
                top, left = (edges[position] for edges in squares)
                expected[:, top : top + augment.cutout, left : left + augment.cutout] = 0
            images, labels = batches[epoch * PER_EPOCH + position // BATCH]
            assert labels[position % BATCH] == order[position]
            np.testing.assert_allclose(images[position % BATCH].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_borders_and_cutouts_that_cannot_be_are_refused(split):
    with pytest.raises(BadInput, match="a border of -1 pixels"):
        Augmentation(-1)
    with pytest.raises(BadInput, match="a border of 'ones' around images, expected zeros or reflection"):
        Augmentation(border="ones")
    with pytest.raises(BadInput, match="cannot reflect images of 5"):
        stream(split, Augmentation(5, "reflection"))
    with pytest.raises(BadInput, match="a cutout of -1 pixels"):
        Augmentation(cutout=-1)
    with pytest.raises(BadInput, match=r"a cutout of 6 pixels in images of \(7, 5\), expected at most 5"):
        stream(split, Augmentation(cutout=6))


def test_crops_and_flips_are_uniform():
    _, tops, lefts, flips = draw_epoch(90_000, seed=0, epoch=0)
    for corners in (tops, lefts):
        share = torch.bincount(corners, minlength=9) / 90_000
        assert share.shape == (9,)
        assert (share - 1 / 9).abs().max() < 0.006  # six standard deviations
    assert abs(flips.double().mean() - 0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack([tops, lefts]).double())[0, 1]) < 0.02


def test_cutouts_are_uniform_and_leave_the_other_draws_as_they_are():
    *others, tops, lefts = draw_epoch(90_000, seed=0, epoch=0, augment=Augmentation(cutout=3))
    assert torch.equal(torch.stack(others), draw_epoch(90_000, seed=0, epoch=0))
    for edges, places in ((tops, 5), (lefts, 3)):  # wholly inside 7 x 5 pixels
        share = torch.bincount(edges, minlength=places) / 90_000
        assert share.shape == (places,)
        assert (share - 1 / places).abs().max() < 0.01


def test_draws_depend_on_seed_and_epoch_and_nothing_else():
    torch.manual_seed(0)
    first = draw_epoch(50, seed=1, epoch=2)
    torch.manual_seed(1)
    assert torch.equal(first, draw_epoch(50, seed=1, epoch=2))
    for seed, epoch in ((2, 2), (1, 1), (2, 1)):
        assert not torch.equal(first, draw_epoch(50, seed, epoch))


def test_stream_leaves_the_global_generator_alone(split):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    take(stream(split), 7)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("augment", [None, AUGMENTATION])
@given(stop=st.integers(0, 4 * PER_EPOCH))
def test_restored_stream_continues_bit_for_bit(augment, stop):
    split = make_split()
    unbroken = stream(split, augment)
    take(unbroken, stop)
    state = unbroken.state_dict()
    assert state == {"iteration": stop}

    restored = stream(split, augment)
    take(restored, 2)  # what it gave before does not matter
    restored.load_state_dict(state)
    assert_same(take(restored, 2 * PER_EPOCH + 1), take(unbroken, 2 * PER_EPOCH + 1))


@pytest.mark.parametrize("ahead_bytes", [1, 4 * BATCH * 70 * 2, 2**22])
def test_batches_do_not_depend_on_how_many_are_cut_at_once(split, monkeypatch, ahead_bytes):
    expected = take(stream(split), 3 * PER_EPOCH)
    monkeypatch.setattr("mrfquant.data.batches.AHEAD_BYTES", ahead_bytes)
    assert_same(take(stream(split), 3 * PER_EPOCH), expected)


@pytest.mark.parametrize("augment", [None, AUGMENTATION])
@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_together_see_the_batches_of_one_process(split, augment, world_size):
    whole = take(stream(split, augment), 2 * PER_EPOCH)
    ranks = [take(stream(split, augment, rank=r, world_size=world_size), 2 * PER_EPOCH) for r in range(world_size)]
    together = [
        (torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))
        for parts in zip(*ranks, strict=True)
    ]
    assert_same(together, whole)


def test_a_batch_may_be_the_whole_split(split):
    _, labels = next(ImageBatches(split.images, split.labels, SIZE, MEAN, STD, augment=None, seed=0))
    assert sorted(labels.tolist()) == list(range(SIZE))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch size 0, expected 1 to 23"),
        ({"batch_size": -2}, "batch size -2"),
        ({"batch_size": 24}, "batch size 24"),
        ({"world_size": 4}, "does not divide among 4"),
        ({"world_size": 0}, "does not divide"),
        ({"rank": 2, "world_size": 2}, "rank 2, expected 0 to 1"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_impossible_arguments_are_refused(split, arguments, message):
    defaults = {"batch_size": BATCH, "mean": MEAN, "std": STD, "augment": None, "seed": 0}
    with pytest.raises(BadInput, match=message):
        ImageBatches(split.images, split.labels, **(defaults | arguments))


def images(split: Split) -> Images:
    return Images("some", split, split, split, MEAN, STD, tuple(map(str, range(SIZE))), augment=None)


def test_evaluation_gives_every_image_once_in_order(split):
    batches = list(images(split).ordered("val", 10))
    assert [len(labels) for _, labels in batches] == [10, 10, 3]
    assert torch.equal(torch.cat([labels for _, labels in batches]), split.labels)
    assert torch.equal(torch.cat([images for images, _ in batches]), normalise(split.images, MEAN, STD))


def test_evaluation_refuses_an_empty_batch(split):
    with pytest.raises(BadInput, match="batch size 0"):
        next(images(split).ordered("val", 0))
