"""The paper's networks: LeNet-300 and LeNet-5, and VGG and ResNet for small images.

Every parameter that is left to learn is a weight or a bias of a linear map, so a quantized network is quantized
whole. Batch norm follows every layer but the last and keeps only its running statistics.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from mrfquant.config.settings import Count, Positive
from mrfquant.errors import BadInput
from mrfquant.models.registry import network


def scale_channels(channels: int, width: float) -> int:
    """Return the number of channels at a width multiplier, at least one."""
    return max(1, round(channels * width))


def with_batch_norm(layer: nn.Linear | nn.Conv2d) -> list[nn.Module]:
    """Return the layer, its batch norm and ReLU."""
    if isinstance(layer, nn.Linear):
        return [layer, nn.BatchNorm1d(layer.out_features, affine=False), nn.ReLU()]
    return [layer, nn.BatchNorm2d(layer.out_channels, affine=False), nn.ReLU()]


class Layered(nn.Module):
    """A network whose `layers` follow one another."""

    layers: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        """Map images (b, c, h, w) to logits (b, classes)."""
        return self.layers(x)


@network
class LeNet300(Layered):
    """Fully connected, hidden layers of 300 and 100 units times `width`, for images (channels, height, width)."""

    def __init__(self, shape: tuple[int, int, int], classes: Count, width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = shape
        first, second = scale_channels(300, width), scale_channels(100, width)
        self.name = "lenet300"
        self.layers = nn.Sequential(
            nn.Flatten(),
            *with_batch_norm(nn.Linear(channels * height * columns, first)),
            *with_batch_norm(nn.Linear(first, second)),
            nn.Linear(second, classes),
        )


@network
class LeNet5(Layered):
    """Convolutions of 20 and 50 channels (5x5, each pooled by 2), then 500 units, all times `width`."""

    def __init__(self, shape: tuple[int, int, int], classes: Count, width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = shape
        first, second, hidden = (scale_channels(n, width) for n in (20, 50, 500))
        after = [((side - 4) // 2 - 4) // 2 for side in (height, columns)]
        if min(after) < 1:
            raise BadInput(
                f"LeNet5 needs images of at least 16x16, these are {height}x{columns}: choose LeNet300 for them"
            )
        self.name = "lenet5"
        self.layers = nn.Sequential(
            *with_batch_norm(nn.Conv2d(channels, first, 5)),
            nn.MaxPool2d(2),
            *with_batch_norm(nn.Conv2d(first, second, 5)),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *with_batch_norm(nn.Linear(second * after[0] * after[1], hidden)),
            nn.Linear(hidden, classes),
        )


VGG_CHANNELS = (64, 128, 256, 512, 512)
VGG_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


@network
class VGG(Layered):
    """Biased convolutions, each stage pooled by 2, no dropout; depth is 11, 13, 16 or 19, sizes times `width`."""

    def __init__(
        self, shape: tuple[int, int, int], classes: Count, depth: Literal[11, 13, 16, 19] = 16, width: Positive = 1.0
    ) -> None:
        super().__init__()
        channels, height, columns = shape
        if min(height, columns) < 32:
            raise BadInput(f"VGG needs images of at least 32x32, these are {height}x{columns}: choose a LeNet for them")
        self.name = f"vgg{depth}"
        layers: list[nn.Module] = []
        for count, full in zip(VGG_CONVOLUTIONS[depth], VGG_CHANNELS, strict=True):
            for _ in range(count):
                layers += with_batch_norm(nn.Conv2d(channels, scale_channels(full, width), 3, padding=1))
                channels = scale_channels(full, width)
            layers.append(nn.MaxPool2d(2))
        hidden = scale_channels(512, width)
        self.layers = nn.Sequential(
            *layers,
            nn.Flatten(),
            *with_batch_norm(nn.Linear(channels * (height // 32) * (columns // 32), hidden)),
            *with_batch_norm(nn.Linear(hidden, hidden)),
            nn.Linear(hidden, classes),
        )


RESNET_CHANNELS = (64, 128, 256, 512)
RESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs, affine=False)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


@network
class ResNet(nn.Module):
    """Basic blocks in four stages, times `width`, pooling, one linear layer; depth is 18 or 34.

    For images from 64x64 on, the first convolution has stride 2.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: Count, depth: Literal[18, 34] = 18, width: Positive = 1.0
    ) -> None:
        super().__init__()
        self.name = f"resnet{depth}"
        channels = scale_channels(RESNET_CHANNELS[0], width)
        self.stem = convolution(shape[0], channels, 3, stride=2 if min(shape[1:]) >= 64 else 1)
        blocks: list[nn.Module] = []
        for stage, (count, full) in enumerate(zip(RESNET_BLOCKS[depth], RESNET_CHANNELS, strict=True)):
            for index in range(count):
                blocks.append(BasicBlock(channels, scale_channels(full, width), stride=2 if stage and not index else 1))
                channels = scale_channels(full, width)
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (b, c, h, w) to logits (b, classes)."""
        x = self.stages(functional.relu(self.stem(x)))
        return self.classifier(x.mean((2, 3)))
