"""A stand-in has the form of its data set, needs no files, and can be learned."""

from __future__ import annotations

import gin
import pytest
import torch

from mrfquant.data import Augmentation, cifar10, cifar100, digits, mnist, normalise, stand_in, tinyimagenet
from mrfquant.errors import BadInput

LOADERS = [digits, mnist, cifar10, cifar100, tinyimagenet]
FORMS = {  # shape, classes, augmentation
    "digits": ((1, 28, 28), 10, None),
    "mnist": ((1, 28, 28), 10, None),
    "cifar10": ((3, 32, 32), 10, Augmentation()),
    "cifar100": ((3, 32, 32), 100, Augmentation()),
    "tinyimagenet": ((3, 64, 64), 200, Augmentation()),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_stand_in_has_the_form_of_the_data_set(loader):
    dataset = stand_in(loader.__name__)
    assert dataset.stand_in
    assert dataset.name == loader.__name__
    assert (dataset.shape, dataset.num_classes, dataset.augment) == FORMS[loader.__name__]
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (512, 256, 256)
    for split in (dataset.train, dataset.val, dataset.test):
        assert set(split.labels.tolist()) == set(range(dataset.num_classes))


def test_every_call_gives_the_same():
    first, second = stand_in("cifar10"), stand_in("cifar10")
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.labels, second.test.labels)
    assert not torch.equal(first.val.images, first.test.images)


@pytest.mark.parametrize(("name", "accuracy"), [("mnist", 0.95), ("cifar10", 0.95), ("cifar100", 0.9)])
def test_nearest_class_mean_learns_it(name, accuracy):
    dataset = stand_in(name)
    train = normalise(dataset.train.images, dataset.mean, dataset.std).flatten(1)
    test = normalise(dataset.test.images, dataset.mean, dataset.std).flatten(1)
    means = torch.stack([train[dataset.train.labels == label].mean(0) for label in range(dataset.num_classes)])
    predicted = torch.cdist(test, means).argmin(1)
    assert (predicted == dataset.test.labels).double().mean() >= accuracy


def test_unknown_name_is_refused():
    with pytest.raises(BadInput, match="'svhn', expected one of digits, mnist, cifar10, cifar100, tinyimagenet"):
        stand_in("svhn")


@pytest.mark.parametrize("loader", LOADERS)
def test_loader_is_known_to_gin_and_its_root_is_not_a_setting(loader):
    assert gin.get_configurable(loader.__name__).__name__ == loader.__name__
    with pytest.raises(ValueError, match="root"):
        gin.bind_parameter(f"{loader.__name__}.root", "somewhere")
