"""VGG-11/13/16/19 for small images: five stages of 3x3 convolutions, then two hidden layers of 512."""

from typing import Literal

from torch import Tensor, nn

from mrfquant.config.settings import Count, Positive
from mrfquant.errors import BadInput
from mrfquant.models.layers import normed, scaled
from mrfquant.models.registry import network

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


@network
class VGG(nn.Module):
    """Biased convolutions, each stage pooled by 2, no dropout.

    Args:
        shape: (channels, height, width) of an image, sides of at least 32.
        classes: number of classes.
        depth: layers with weights: 11, 13, 16 or 19.
        width: multiplies every number of channels and of hidden units.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: Count, depth: Literal[11, 13, 16, 19] = 16, width: Positive = 1.0
    ) -> None:
        super().__init__()
        channels, height, columns = shape
        if min(height, columns) < 32:
            raise BadInput(f"VGG needs images of at least 32x32, these are {height}x{columns}: choose a LeNet for them")
        self.name = f"vgg{depth}"
        layers: list[nn.Module] = []
        for count, full in zip(CONVOLUTIONS[depth], CHANNELS, strict=True):
            for _ in range(count):
                layers += normed(nn.Conv2d(channels, scaled(full, width), 3, padding=1))
                channels = scaled(full, width)
            layers.append(nn.MaxPool2d(2))
        hidden = scaled(512, width)
        self.layers = nn.Sequential(
            *layers,
            nn.Flatten(),
            *normed(nn.Linear(channels * (height // 32) * (columns // 32), hidden)),
            *normed(nn.Linear(hidden, hidden)),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) to logits (b, classes)."""
        return self.layers(x)
