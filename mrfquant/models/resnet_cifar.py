"""ResNet-20, 32, 44, 56 and 110 for CIFAR (He et al., 2016, section 4.2), with the names of the public weights."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from mrfquant.config.settings import Count
from mrfquant.models.registry import network

CHANNELS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.padding:  # option A: every second pixel, zeros for the channels that are new, half of them on each side
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(y + x)


@network
class CifarResNet(nn.Module):
    """Three stages of basic blocks with 16, 32 and 64 channels, pooling, one linear layer; depth is 6 n + 2."""

    def __init__(
        self, shape: tuple[int, int, int], classes: Count, depth: Literal[8, 20, 32, 44, 56, 110] = 20
    ) -> None:
        super().__init__()
        self.name = f"resnet{depth}"
        self.conv1 = nn.Conv2d(shape[0], CHANNELS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(CHANNELS[0])
        blocks = (depth - 2) // 6
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                BasicBlock(before, channels, stride), *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1))
            )
            for before, channels, stride in zip((16, *CHANNELS), CHANNELS, (1, 2, 2), strict=False)
        )
        self.linear = nn.Linear(CHANNELS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (b, c, h, w) to logits (b, classes)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))
