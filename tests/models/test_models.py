"""The networks have the paper's sizes, nothing unquantizable, and run on the shapes they promise."""

import pytest
import torch

from mrfquant.errors import BadInput
from mrfquant.models import VGG, LeNet5, LeNet300, ResNet

CIFAR, MNIST, TINY = (3, 32, 32), (1, 28, 28), (3, 64, 64)


def conv(inputs, outputs, size, bias=True):
    return outputs * (inputs * size * size + bias)


def linear(inputs, outputs):
    return outputs * (inputs + 1)


def vgg(*stages, classes=10, pixels=1):
    channels, total = 3, 0
    for full, count in zip((64, 128, 256, 512, 512), stages, strict=True):
        for _ in range(count):
            total, channels = total + conv(channels, full, 3), full
    return total + linear(512 * pixels, 512) + linear(512, 512) + linear(512, classes)


def resnet(*blocks, classes=10):
    total, channels = conv(3, 64, 3, False), 64
    for full, count in zip((64, 128, 256, 512), blocks, strict=True):
        shortcut = conv(channels, full, 1, False) if full != channels else 0
        total += shortcut + conv(channels, full, 3, False) + (2 * count - 1) * conv(full, full, 3, False)
        channels = full
    return total + linear(512, classes)


CASES = {
    "lenet300": (lambda: LeNet300(MNIST, 10), MNIST, linear(784, 300) + linear(300, 100) + linear(100, 10)),
    "lenet5": (lambda: LeNet5(MNIST, 10), MNIST, conv(1, 20, 5) + conv(20, 50, 5) + linear(800, 500) + linear(500, 10)),
    "vgg11": (lambda: VGG(CIFAR, 10, depth=11), CIFAR, vgg(1, 1, 2, 2, 2)),
    "vgg13": (lambda: VGG(CIFAR, 10, depth=13), CIFAR, vgg(2, 2, 2, 2, 2)),
    "vgg16": (lambda: VGG(CIFAR, 100), CIFAR, vgg(2, 2, 3, 3, 3, classes=100)),
    "vgg19": (lambda: VGG(CIFAR, 10, depth=19), CIFAR, vgg(2, 2, 4, 4, 4)),
    "vgg16 on 64x64": (lambda: VGG(TINY, 200), TINY, vgg(2, 2, 3, 3, 3, classes=200, pixels=4)),
    "resnet18": (lambda: ResNet(CIFAR, 10), CIFAR, resnet(2, 2, 2, 2)),
    "resnet34": (lambda: ResNet(CIFAR, 100, depth=34), CIFAR, resnet(3, 4, 6, 3, classes=100)),
    "resnet18 on 64x64": (lambda: ResNet(TINY, 200), TINY, resnet(2, 2, 2, 2, classes=200)),
}


@pytest.mark.parametrize("name", CASES)
def test_parameter_count_is_the_closed_form(name):
    build, _, expected = CASES[name]
    assert sum(p.numel() for p in build().parameters()) == expected


def test_counts_agree_with_the_published_ones():
    assert CASES["lenet300"][2] == 266_610
    assert CASES["lenet5"][2] == 431_080
    assert CASES["resnet18"][2] == 11_173_962 - 9_600  # the usual CIFAR ResNet-18 less its batch-norm parameters


@pytest.mark.parametrize("name", CASES)
def test_batch_norm_follows_every_layer_but_the_last_and_learns_nothing(name):
    model = CASES[name][0]()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    maps = [m for m in model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    assert len(norms) == len(maps) - 1
    assert not any(True for norm in norms for _ in norm.parameters())


@pytest.mark.parametrize("build", [LeNet300, LeNet5, VGG, ResNet])
def test_width_scales_channels_and_the_output_stays(build):
    shape = MNIST if build in (LeNet300, LeNet5) else CIFAR
    narrow, full = build(shape, 7, width=0.125), build(shape, 7)
    assert narrow(torch.randn(2, *shape)).shape == (2, 7)
    assert sum(p.numel() for p in narrow.parameters()) < sum(p.numel() for p in full.parameters()) / 6


@pytest.mark.parametrize(("shape", "first"), [(CIFAR, 32), (TINY, 32)])
def test_resnet_halves_only_large_images_at_once(shape, first):
    assert ResNet(shape, 10, width=0.125).stem(torch.randn(1, *shape)).shape[-1] == first


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 14, 28), (1, 15, 15)])
def test_lenet5_refuses_images_it_would_pool_away(shape):
    with pytest.raises(BadInput, match="at least 16x16"):
        LeNet5(shape, 10)
    LeNet5((1, 16, 16), 10)(torch.zeros(2, 1, 16, 16))


def test_vgg_refuses_images_it_would_pool_away():
    with pytest.raises(BadInput, match="at least 32x32"):
        VGG(MNIST, 10)
