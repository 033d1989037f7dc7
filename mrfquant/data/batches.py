"""Batches cut from tensors: an endless shuffled stream whose only state is how many batches it has given.

Everything random about an epoch is drawn at its start from (seed, epoch) on the CPU, so that a restored stream,
another device or several processes see the same batches.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrfquant.errors import BadInput

AHEAD_BYTES = 2**22  # small batches are cut several at once, up to this much: MNIST's come in a third of the time
SHARE_OF_DEVICE = 0.5  # fraction of an accelerator's free memory that a data set may take


class Batches(ABC):
    """Endless stream of (inputs, targets) on a device; a subclass draws and cuts examples.

    Each epoch is a new permutation without the incomplete batch at its end. Of `world_size` processes each gets its
    slice of every batch. Data that lie on another device are copied several batches ahead.
    """

    def __init__(
        self,
        size: int,
        example_bytes: int,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
        unit: str = "examples",
    ) -> None:
        if not 0 < batch_size <= size:
            raise BadInput(f"batch size {batch_size}, expected 1 to {size}, the number of training {unit}")
        if world_size < 1 or batch_size % world_size:
            raise BadInput(f"batch size {batch_size} does not divide among {world_size} processes")
        if not 0 <= rank < world_size:
            raise BadInput(f"rank {rank}, expected 0 to {world_size - 1} for {world_size} processes")
        if seed < 0:
            raise BadInput(f"seed {seed} of the batches, expected at least 0")
        self.iteration = 0
        self.batches_per_epoch = size // batch_size
        self._size, self._batch_size, self._seed, self._rank = size, batch_size, seed, rank
        self._local = batch_size // world_size
        self._device = device
        self._ahead = max(1, AHEAD_BYTES // (self._local * example_bytes))
        self._drawn_epoch = -1
        self._ready: deque[tuple[Tensor, Tensor]] = deque()

    @abstractmethod
    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw all that is random in an epoch over `size` examples: int64 (k, size); row 0 is their order."""

    @abstractmethod
    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the examples that columns of `draw` (k, b) stand for."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if not self._ready:
            self._cut_ahead()
        self.iteration += 1
        return self._ready.popleft()

    def state_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (iteration := int(state["iteration"])) < 0:
            raise BadInput(f"the saved state of the batches is at iteration {iteration}, expected 0 or more")
        self.iteration = iteration
        self._ready.clear()

    def _cut_ahead(self) -> None:
        """Make the next batches of this epoch ready. Nothing here waits for the device, except an epoch's first."""
        epoch, first = divmod(self.iteration, self.batches_per_epoch)
        if epoch != self._drawn_epoch:
            self._draws = self._local_draws(self.draw(self._size, epoch_generator(self._seed, epoch)))
            self._drawn_epoch = epoch
        examples = self.cut(self._draws[:, first : first + self._ahead].flatten(1))
        inputs, targets = (tensor.to(self._device, non_blocking=True) for tensor in examples)
        self._ready.extend(zip(inputs.split(self._local), targets.split(self._local), strict=True))

    def _local_draws(self, draws: Tensor) -> Tensor:
        """Return this rank's part of the epoch's draws: (k, batches_per_epoch, b)."""
        draws = draws[:, : self.batches_per_epoch * self._batch_size]
        draws = draws.view(len(draws), self.batches_per_epoch, self._batch_size)
        return draws[:, :, self._rank * self._local : (self._rank + 1) * self._local]


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return what an epoch is drawn with, a function of the arguments alone."""
    # One 32-bit word: all that torch's CPU generator takes in.
    word = np.random.SeedSequence([seed, epoch]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(word))


def place_tensors(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """Move a data set's tensors to the device; where they would crowd it, keep them on the host, ready to be copied."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    free, _ = torch.cuda.mem_get_info(device)
    if sum(tensor.nbytes for tensor in tensors) <= SHARE_OF_DEVICE * free:
        return [tensor.to(device) for tensor in tensors]
    return [tensor.cpu().pin_memory() for tensor in tensors]
