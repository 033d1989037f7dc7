"""A network that learns CIFAR-10 in few epochs: whitened patches, then six convolutions with early pooling.

The form is that of the CIFAR-10 speed records (Page, 2018; Jordan, 2024).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mrfquant.config.settings import Count
from mrfquant.errors import BadInput
from mrfquant.models.registry import network

PATCH = 2  # pixels on a side of what the stem sees
ADDED_VARIANCE = 5e-4  # added to those of the patches
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


def group(inputs: int, outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    """Build two convolutions, the first pooled by 2 before its norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs),
        activation(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        activation(),
    )


@network
class WhitenedNet(nn.Module):
    """A small convolutional network that learns fast: 1.97 million parameters.

    A fixed stem whose filters whiten the patches of the training images, three groups of two convolutions, and a linear
    layer on the largest activation of each channel.

    Args:
        shape: (channels, height, width) of an image, sides of at least 17.
        classes: number of classes.
        widths: channels of the three groups.
        activation: behind the stem and every norm.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: Count,
        widths: Sequence[int] = (64, 256, 256),
        activation: Literal["relu", "gelu"] = "relu",
    ) -> None:
        super().__init__()
        channels, height, columns = shape
        if min(height, columns) < 17:
            raise BadInput(f"WhitenedNet needs images of at least 17x17, these are {height}x{columns}")
        if len(widths) != 3:
            raise BadInput(f"WhitenedNet.widths are {list(widths)}, expected three numbers: channels of the groups")
        self.name = "whitened"
        stem, kind = 2 * channels * PATCH**2, ACTIVATIONS[activation]
        self.activation = kind()
        self.stem = nn.Conv2d(channels, stem, PATCH)
        self.stem.weight.requires_grad_(False)
        self.groups = nn.Sequential(
            *(group(before, after, kind) for before, after in zip((stem, *widths), widths, strict=False))
        )
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def fit_to(self, images: Tensor) -> None:
        """Whiten the patches of these images: each principal direction over its deviation, and its negative."""
        patches = images.double().unfold(2, PATCH, 1).unfold(3, PATCH, 1)  # (n, c, h, w, 2, 2)
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)
        variances, directions = torch.linalg.eigh(torch.cov(patches.T))
        filters = (directions / (variances + ADDED_VARIANCE).sqrt()).T.reshape(-1, *self.stem.weight.shape[1:])
        with torch.no_grad():
            self.stem.weight.copy_(torch.cat([filters, -filters]))
            assert self.stem.bias is not None
            self.stem.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (b, c, h, w) to logits (b, classes)."""
        x = self.groups(self.activation(self.stem(x)))
        return self.head(x.amax((2, 3)))
