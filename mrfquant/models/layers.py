"""What the networks share: widths, and batch norm without learnable parameters.

Every parameter that is left to learn is a weight or a bias of a linear map, so a quantized network is quantized
whole. Batch norm follows every layer but the last and keeps only its running statistics.
"""

from torch import nn


def scaled(channels: int, width: float) -> int:
    """The number of channels at a width multiplier, at least one."""
    return max(1, round(channels * width))


def normed(layer: nn.Linear | nn.Conv2d) -> list[nn.Module]:
    """The layer, its batch norm and ReLU."""
    if isinstance(layer, nn.Linear):
        return [layer, nn.BatchNorm1d(layer.out_features, affine=False), nn.ReLU()]
    return [layer, nn.BatchNorm2d(layer.out_channels, affine=False), nn.ReLU()]
