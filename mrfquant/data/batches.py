"""Batches cut on the device where the images lie: an endless shuffled stream to train on, an ordered pass to evaluate.

The stream's only state is the number of batches given so far. Everything random about an epoch is drawn at its start
from (seed, epoch) on the CPU, so that a restored stream, another device or several processes see the same batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrfquant.data.dataset import Split
from mrfquant.errors import BadInput

PAD = 4  # zeros around an image that a random crop may take in, in pixels
AHEAD_BYTES = 2**22  # small batches are cut several at once, up to this much: MNIST's come in a third of the time


def normalise(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """(images / 255 - mean) / std per channel, for `images` uint8 (n, c, h, w)."""
    if images.dtype != torch.uint8:
        raise BadInput(f"images to normalise are {images.dtype}, expected torch.uint8")
    return _affine(images, *_scale_and_shift(mean, std, images.device, dtype))


class Batches:
    """Endless stream of (images float32 (b, c, h, w) normalised, labels int64 (b,)) from a split.

    Each epoch is a new permutation, and the incomplete batch at its end is dropped. With `augment`, an image is cut
    at a random place out of itself padded by 4 zeros on each side, and mirrored left to right with probability 1/2;
    the padded uint8 copy of the split is the only extra memory of note.

    Of `world_size` processes, the one of `rank` gets its contiguous slice of every batch, so that all of them
    together see the batches, with the augmentation, that a single process would see.

    Args:
        batch_size: of the whole batch, over all processes.
        mean, std: per channel, for images scaled to [0, 1].
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 < batch_size <= len(split):
            raise BadInput(f"batch size {batch_size}, expected 1 to {len(split)}, the number of training images")
        if world_size < 1 or batch_size % world_size:
            raise BadInput(f"batch size {batch_size} does not divide among {world_size} processes")
        if not 0 <= rank < world_size:
            raise BadInput(f"rank {rank}, expected 0 to {world_size - 1} for {world_size} processes")
        if seed < 0:
            raise BadInput(f"seed {seed} of the batches, expected at least 0")
        self.iteration = 0
        self.batches_per_epoch = len(split) // batch_size
        self._batch_size = batch_size
        self._augment = augment
        self._seed = seed
        self._local = batch_size // world_size
        self._rank = rank
        self._images, self._labels = split.images, split.labels
        if augment:
            h, w = self._images.shape[2:]
            padded = F.pad(self._images, (PAD,) * 4)
            self._images = padded.unfold(2, h, 1).unfold(3, w, 1).permute(0, 2, 3, 1, 4, 5)  # a view: (n,9,9,c,h,w)
        self._scale_and_shift = _scale_and_shift(mean, std, split.images.device, torch.float32)
        self._ahead = max(1, AHEAD_BYTES // (4 * self._local * split.images[0].numel()))
        self._drawn_epoch = -1
        self._ready: deque[tuple[Tensor, Tensor]] = deque()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if not self._ready:
            self._cut()
        self.iteration += 1
        return self._ready.popleft()

    def state_dict(self) -> dict[str, int]:
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.iteration = int(state["iteration"])
        self._ready.clear()

    def _cut(self) -> None:
        """Make the next batches of this epoch ready. Nothing here waits for the device, except an epoch's first."""
        epoch, first = divmod(self.iteration, self.batches_per_epoch)
        if epoch != self._drawn_epoch:
            self._draws = self._draw(epoch)
            self._drawn_epoch = epoch
        draws = self._draws[:, first : first + self._ahead].flatten(1)
        order = draws[0]
        if self._augment:
            _, top, left, flip = draws
            images = self._images[order, top, left]
            images = torch.where(flip.bool()[:, None, None, None], images.flip(3), images)
        else:
            images = self._images.index_select(0, order)
        images = _affine(images, *self._scale_and_shift)
        labels = self._labels.index_select(0, order)
        self._ready.extend(zip(images.split(self._local), labels.split(self._local), strict=True))

    def _draw(self, epoch: int) -> Tensor:
        """This rank's part of the epoch's draws, on the device: (1 or 4, batches_per_epoch, b)."""
        draws = draw_epoch(len(self._labels), self._seed, epoch, self._augment)
        draws = draws[:, : self.batches_per_epoch * self._batch_size]
        draws = draws.view(len(draws), self.batches_per_epoch, self._batch_size)
        mine = slice(self._rank * self._local, (self._rank + 1) * self._local)
        return draws[:, :, mine].to(self._labels.device)


def draw_epoch(size: int, seed: int, epoch: int, augment: bool) -> Tensor:
    """All that is random in an epoch over `size` images, a function of the arguments alone: int64, (1 or 4, size).

    Row 0 is the order of the images; with `augment`, rows 1 to 3 are the top and the left edge of each crop in the
    padded image and whether it is mirrored.
    """
    # One 32-bit word: all that torch's CPU generator takes in.
    word = np.random.SeedSequence([seed, epoch]).generate_state(1)[0]
    generator = torch.Generator().manual_seed(int(word))
    draws = torch.randperm(size, generator=generator)[None]
    if augment:
        corners = torch.randint(2 * PAD + 1, (2, size), generator=generator)
        flips = torch.randint(2, (1, size), generator=generator)
        draws = torch.cat([draws, corners, flips])
    return draws


def evaluation_batches(
    split: Split, batch_size: int, mean: Sequence[float], std: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The split once, in order and without augmentation, the last batch as short as it comes; shapes as `Batches`."""
    if batch_size < 1:
        raise BadInput(f"batch size {batch_size}, expected at least 1")
    scale, shift = _scale_and_shift(mean, std, split.images.device, torch.float32)
    pairs = zip(split.images.split(batch_size), split.labels.split(batch_size), strict=True)
    return ((_affine(images, scale, shift), labels) for images, labels in pairs)


def _scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The two (c, 1, 1) tensors with which normalising is pixel * scale + shift."""
    mean64, std64 = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    return (1 / (255 * std64)).to(device, dtype), (-mean64 / std64).to(device, dtype)


def _affine(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # Two rounded operations and no fused one, whose last bit could depend on how the batch was cut.
    return images.to(scale.dtype).mul_(scale).add_(shift)
