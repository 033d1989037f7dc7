"""LeNet-300 (784-300-100-10) and LeNet-5 (two convolutions, two fully connected layers)."""

from torch import Tensor, nn

from mrfquant.config.settings import Count, Positive
from mrfquant.errors import BadInput
from mrfquant.models.layers import normed, scaled
from mrfquant.models.registry import network


@network
class LeNet300(nn.Module):
    """Fully connected, hidden layers of 300 and 100 units times `width`.

    Args:
        shape: (channels, height, width) of an image.
        classes: number of classes.
        width: multiplies the hidden sizes.
    """

    def __init__(self, shape: tuple[int, int, int], classes: Count, width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = shape
        first, second = scaled(300, width), scaled(100, width)
        self.name = "lenet300"
        self.layers = nn.Sequential(
            nn.Flatten(),
            *normed(nn.Linear(channels * height * columns, first)),
            *normed(nn.Linear(first, second)),
            nn.Linear(second, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) to logits (b, classes)."""
        return self.layers(x)


@network
class LeNet5(nn.Module):
    """Convolutions of 20 and 50 channels (5x5, each pooled by 2), then 500 units, all times `width`."""

    def __init__(self, shape: tuple[int, int, int], classes: Count, width: Positive = 1.0) -> None:
        super().__init__()
        channels, height, columns = shape
        first, second, hidden = (scaled(n, width) for n in (20, 50, 500))
        after = [((side - 4) // 2 - 4) // 2 for side in (height, columns)]
        if min(after) < 1:
            raise BadInput(
                f"LeNet5 needs images of at least 16x16, these are {height}x{columns}: choose LeNet300 for them"
            )
        self.name = "lenet5"
        self.layers = nn.Sequential(
            *normed(nn.Conv2d(channels, first, 5)),
            nn.MaxPool2d(2),
            *normed(nn.Conv2d(first, second, 5)),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *normed(nn.Linear(second * after[0] * after[1], hidden)),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) to logits (b, classes)."""
        return self.layers(x)
