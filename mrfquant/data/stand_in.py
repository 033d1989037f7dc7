"""Synthetic data in the form of a known data set, to try a configuration without its files."""

import torch
import torch.nn.functional as F

from mrfquant.data.base import STAND_INS
from mrfquant.data.cifar import CIFAR10, CIFAR100
from mrfquant.data.digits import DIGITS
from mrfquant.data.images import Images, Split
from mrfquant.data.mnist import MNIST
from mrfquant.data.texts import shakespeare_stand_in
from mrfquant.data.tinyimagenet import TINYIMAGENET
from mrfquant.errors import BadInput

INFOS = {info.name: info for info in (DIGITS, MNIST, CIFAR10, CIFAR100, TINYIMAGENET)}
SIZES = (512, 256, 256)  # train, validation, test


def stand_in(name: str) -> Images:
    """Return a small learnable data set of the form of `name`: smooth, symmetric patterns of the classes plus noise."""
    if name not in INFOS:
        raise BadInput(f"no stand-in for the data set {name!r}, expected one of {', '.join(INFOS)}")
    info = INFOS[name]
    channels, h, w = info.shape
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(len(info.classes), channels, 4, 4, generator=generator)
    patterns = F.interpolate(coarse + coarse.flip(3), size=(h, w), mode="bilinear")
    mean, std = (torch.tensor(values)[:, None, None] for values in (info.mean, info.std))

    def split(size: int) -> Split:
        labels = torch.randperm(size, generator=generator) % len(info.classes)  # every class, equally often
        noise = torch.randn(size, *info.shape, generator=generator)
        images = mean + std * (patterns[labels] + noise) / 2  # mostly in [0, 1]
        return Split((255 * images).round().clamp(0, 255).to(torch.uint8), labels)

    train, val, test = (split(size) for size in SIZES)
    return info.dataset(train, val, test, stand_in=True)


# Whatever the settings of the real one are.
STAND_INS |= {name: lambda name=name, **settings: stand_in(name) for name in INFOS}
STAND_INS["shakespeare"] = shakespeare_stand_in
