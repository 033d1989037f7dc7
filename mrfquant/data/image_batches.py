"""Batches of images, cut, cropped and normalised where the images lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mrfquant.data.batches import Batches
from mrfquant.errors import BadInput

PAD = 4  # zeros around an image that a random crop may take in, in pixels


def normalise(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(images / 255 - mean) / std per channel, for `images` uint8 (n, c, h, w)."""
    if images.dtype != torch.uint8:
        raise BadInput(f"images to normalise are {images.dtype}, expected torch.uint8")
    return _affine(images, *_scale_and_shift(mean, std, images.device, dtype))


class ImageBatches(Batches):
    """Endless stream of (images float32 (b, c, h, w) normalised, labels int64 (b,)).

    With `augment`, an image is cut at a random place out of itself padded by 4 zeros on each side, and mirrored left to
    right with probability 1/2; the padded uint8 copy of the images is the only extra memory of note.

    Args:
        images: uint8 (n, c, h, w).
        labels: int64 (n,).
        batch_size: of the whole batch, over all processes.
        mean: per channel, for images scaled to [0, 1].
        std: likewise.
        device: where the batches go; where the images lie by default.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool,
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
        if augment:
            h, w = images.shape[2:]
            padded = F.pad(images, (PAD,) * 4)
            self._images = padded.unfold(2, h, 1).unfold(3, w, 1).permute(0, 2, 3, 1, 4, 5)  # a view: (n,9,9,c,h,w)
        self._scale_and_shift = _scale_and_shift(mean, std, device, torch.float32)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Row 0 is the order of the images; with `augment`, rows 1 to 3 are the top and the left edge of each crop in
        the padded image and whether it is mirrored."""
        return draw_images(size, generator, self._augment).to(self._labels.device)

    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        order = draws[0]
        if self._augment:
            _, top, left, flip = draws
            images = self._images[order, top, left]
            images = torch.where(flip.bool()[:, None, None, None], images.flip(3), images)
        else:
            images = self._images.index_select(0, order)
        images = images.to(self._device, non_blocking=True)  # as bytes: a quarter of what floats take
        return _affine(images, *self._scale_and_shift), self._labels.index_select(0, order)


def draw_images(size: int, generator: torch.Generator, augment: bool) -> Tensor:
    """What `ImageBatches.draw` gives: int64 (1 or 4, size)."""
    draws = torch.randperm(size, generator=generator)[None]
    if augment:
        corners = torch.randint(2 * PAD + 1, (2, size), generator=generator)
        flips = torch.randint(2, (1, size), generator=generator)
        draws = torch.cat([draws, corners, flips])
    return draws


def _scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The two (c, 1, 1) tensors with which normalising is pixel * scale + shift."""
    mean64, std64 = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    return (1 / (255 * std64)).to(device, dtype), (-mean64 / std64).to(device, dtype)


def _affine(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # Two rounded operations and no fused one, whose last bit could depend on how the batch was cut.
    return images.to(scale.dtype).mul_(scale).add_(shift)
