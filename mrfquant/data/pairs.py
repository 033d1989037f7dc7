"""Inputs and targets as tensors of any kind, such as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mrfquant.data.base import CPU, Batch, Dataset, SplitName
from mrfquant.data.batches import Batches, place_tensors
from mrfquant.errors import BadInput

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Pairs(Dataset):
    """Three pairs (inputs, targets) of tensors with an example in each row, given to the network as they are.

    `classes` says how many classes the targets name; None for targets that are numbers.
    """

    name: str
    train: Pair
    val: Pair
    test: Pair
    classes: int | None = None
    stand_in: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        for name, (inputs, targets) in (("train", self.train), ("val", self.val), ("test", self.test)):
            if len(inputs) != len(targets) or not len(inputs):
                raise BadInput(
                    f"data set {self.name}: {name} has {len(inputs)} inputs and {len(targets)} targets, expected one "
                    "for each and at least one"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train[0].shape[1:])

    @property
    def outputs(self) -> int:
        return self.classes or self.train[1][0].numel()

    def size(self, split: SplitName) -> int:
        return len(getattr(self, split)[0])

    def stream(self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> RowBatches:
        return RowBatches(self.train, batch_size, seed, self.device, rank, world_size)

    def ordered(self, split: SplitName, batch_size: int = 1000, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        inputs, targets = (tensor[rank::world_size].split(max(1, batch_size)) for tensor in getattr(self, split))
        for x, y in zip(inputs, targets, strict=True):
            yield x.to(self.device), y.to(self.device)

    def to(self, device: torch.device | str) -> Pairs:
        device = torch.device(device)
        a, b, c, d, e, f = place_tensors([*self.train, *self.val, *self.test], device)
        return replace(self, train=(a, b), val=(c, d), test=(e, f), device=device)


class RowBatches(Batches):
    """Endless stream of rows of a pair of tensors, in a random order for each epoch."""

    def __init__(
        self, pair: Pair, batch_size: int, seed: int, device: torch.device, rank: int, world_size: int
    ) -> None:
        self._pair = pair
        row = sum(tensor[0].nbytes for tensor in pair)
        super().__init__(len(pair[0]), row, batch_size, seed, device, rank, world_size, "examples")

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        return torch.randperm(size, generator=generator)[None].to(self._pair[0].device)

    def cut(self, draws: Tensor) -> Pair:
        return self._pair[0].index_select(0, draws[0]), self._pair[1].index_select(0, draws[0])
