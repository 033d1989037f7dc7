"""ResNet-18/34 for small images: a 3x3 first convolution and no pooling before the four stages."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from mrfquant.config.settings import Count, Positive
from mrfquant.models.layers import scaled
from mrfquant.models.registry import network

CHANNELS = (64, 128, 256, 512)
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias and its batch norm."""
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
    """Basic blocks in four stages, global average pooling, one linear layer.

    Args:
        shape: (channels, height, width) of an image; from 64x64 on, the first convolution has stride 2.
        classes: number of classes.
        depth: 18 or 34.
        width: multiplies every number of channels.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: Count, depth: Literal[18, 34] = 18, width: Positive = 1.0
    ) -> None:
        super().__init__()
        self.name = f"resnet{depth}"
        channels = scaled(CHANNELS[0], width)
        self.stem = convolution(shape[0], channels, 3, stride=2 if min(shape[1:]) >= 64 else 1)
        blocks: list[nn.Module] = []
        for stage, (count, full) in enumerate(zip(BLOCKS[depth], CHANNELS, strict=True)):
            for index in range(count):
                blocks.append(BasicBlock(channels, scaled(full, width), stride=2 if stage and not index else 1))
                channels = scaled(full, width)
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) to logits (b, classes)."""
        x = self.stages(functional.relu(self.stem(x)))
        return self.classifier(x.mean((2, 3)))
