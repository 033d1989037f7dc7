"""Batches of images, cut, cropped and normalised where the images lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from mrfquant.data.batches import Batches
from mrfquant.errors import BadInput

Border = Literal["zeros", "reflection"]


@dataclass(frozen=True)
class Augmentation:
    """Random crops, mirroring and blanked squares for training images.

    Each image is cut at a random place out of itself with a border around it, and mirrored left to right with
    probability 1/2; a square at a random place of it may be blanked.

    Attributes:
        pad: width of the border, in pixels.
        border: what it shows: zeros, or the image reflected at its edge.
        cutout: side of the square, in pixels, which shows the mean of the training images; 0 for none.
    """

    pad: int = 4
    border: Border = "zeros"
    cutout: int = 0

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise BadInput(f"a border of {self.pad} pixels around images, expected at least 0")
        if self.cutout < 0:
            raise BadInput(f"a cutout of {self.cutout} pixels in images, expected at least 0")
        if self.border not in get_args(Border):
            raise BadInput(f"a border of {self.border!r} around images, expected {' or '.join(get_args(Border))}")

    def padded(self, images: Tensor) -> Tensor:
        """Return images uint8 (n, c, h, w) with their borders: (n, c, h + 2 pad, w + 2 pad)."""
        if self.cutout > min(sides := tuple(images.shape[2:])):
            raise BadInput(f"a cutout of {self.cutout} pixels in images of {sides}, expected at most {min(sides)}")
        if self.border == "zeros":
            return functional.pad(images, (self.pad,) * 4)
        for axis in (2, 3):  # by indices: torch reflects no bytes
            size = images.shape[axis]
            if self.pad >= size:
                raise BadInput(f"a border of {self.pad} pixels cannot reflect images of {size}, expected fewer")
            places = torch.arange(-self.pad, size + self.pad, device=images.device).abs()
            images = images.index_select(axis, size - 1 - (size - 1 - places).abs())
        return images

    def draw(self, size: int, sides: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Draw the crops of `size` images, whether they are mirrored, and their cutouts: int64 (3 or 5, size).

        Rows are the top and the left edge of the crop, the mirroring, and with a cutout its top and left edge. `sides`
        are an image's height and width.
        """
        corners = torch.randint(2 * self.pad + 1, (2, size), generator=generator)
        rows = [corners, torch.randint(2, (1, size), generator=generator)]
        if self.cutout:
            rows += [torch.randint(side - self.cutout + 1, (1, size), generator=generator) for side in sides]
        return torch.cat(rows)

    def blank(self, images: Tensor, top: Tensor, left: Tensor) -> Tensor:
        """Set squares of normalised images (b, c, h, w), whose edges are given, to zero, the mean, in place."""
        down, across = (
            (torch.arange(side, device=images.device) - edge.to(images.device)[:, None]) // self.cutout == 0
            for side, edge in zip(images.shape[2:], (top, left), strict=True)
        )
        return images.masked_fill_(down[:, None, :, None] & across[:, None, None, :], 0.0)


def normalise(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return (images / 255 - mean) / std per channel, for `images` uint8 (n, c, h, w)."""
    if images.dtype != torch.uint8:
        raise BadInput(f"images to normalise are {images.dtype}, expected torch.uint8")
    return _affine(images, *_scale_and_shift(mean, std, images.device, dtype))


class ImageBatches(Batches):
    """Endless stream of (images float32 (b, c, h, w) normalised, labels int64 (b,)), cut from uint8 (n, c, h, w).

    The uint8 copy of the images with borders that `augment` makes is the only extra memory of note.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: Augmentation | None,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
    ) -> None:
        device = device or images.device
        floats = 4 * images[0].numel()
        super().__init__(len(labels), floats, batch_size, seed, device, rank, world_size, "images")
        self._augment = augment
        self._images, self._labels = images, labels
        h, w = images.shape[2:]
        self._sides = (h, w)
        if augment:
            crops = augment.padded(images).unfold(2, h, 1).unfold(3, w, 1)
            self._images = crops.permute(0, 2, 3, 1, 4, 5)  # a view: (n, 2 pad + 1, 2 pad + 1, c, h, w)
        self._scale_and_shift = _scale_and_shift(mean, std, device, torch.float32)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Row 0 is the order of the images, the others what `augment` draws."""
        draws = torch.randperm(size, generator=generator)[None]
        if self._augment:
            draws = torch.cat([draws, self._augment.draw(size, self._sides, generator)])
        return draws.to(self._labels.device)

    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        order, square = draws[0], draws[4:]
        if self._augment:
            top, left, flip = draws[1:4]
            images = self._images[order, top, left]
            images = torch.where(flip.bool()[:, None, None, None], images.flip(3), images)
        else:
            images = self._images.index_select(0, order)
        images = images.to(self._device, non_blocking=True)  # as bytes: a quarter of what floats take
        images = _affine(images, *self._scale_and_shift)
        if self._augment and self._augment.cutout:
            images = self._augment.blank(images, *square)
        return images, self._labels.index_select(0, order)


def _scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the two (c, 1, 1) tensors with which normalising is pixel * scale + shift."""
    mean64, std64 = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    return (1 / (255 * std64)).to(device, dtype), (-mean64 / std64).to(device, dtype)


def _affine(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # Two rounded operations and no fused one, whose last bit could depend on how the batch was cut.
    return images.to(scale.dtype).mul_(scale).add_(shift)
