"""Texts as streams of tokens, read in windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrfquant.data.base import CPU, Batch, Dataset, SplitName
from mrfquant.data.batches import Batches, place_tensors
from mrfquant.errors import BadInput


@dataclass(frozen=True, eq=False)
class Tokens(Dataset):
    """A text in three parts of token numbers (n,); an input is a window, its targets the tokens that follow.

    Attributes:
        vocabulary: every token as text, in the order of the numbers.
        context: tokens of a window.
    """

    name: str
    train: Tensor
    val: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]
    context: int = 128
    stand_in: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    device: torch.device = CPU
    unit = "windows"

    def __post_init__(self) -> None:
        for name, tokens in (("train", self.train), ("val", self.val), ("test", self.test)):
            if tokens.dim() != 1 or tokens.is_floating_point() or tokens.is_complex():
                raise BadInput(f"data set {self.name}: {name} is no vector of whole numbers")
            if len(tokens) <= self.context:
                raise BadInput(
                    f"data set {self.name}: the {name} part has {len(tokens):,} tokens, "
                    f"expected more than a window of {self.context}"
                )
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= len(self.vocabulary):
                raise BadInput(
                    f"data set {self.name}: {name} tokens run from {low} to {high}, expected 0 to "
                    f"{len(self.vocabulary) - 1} for a vocabulary of {len(self.vocabulary)}"
                )

    @property
    def shape(self) -> tuple[int]:
        return (self.context,)

    @property
    def outputs(self) -> int:
        return len(self.vocabulary)

    def size(self, split: SplitName) -> int:
        return -(-(len(getattr(self, split)) - 1) // self.context)

    def stream(self, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> WindowBatches:
        return WindowBatches(self.train, self.context, batch_size, seed, self.device, rank, world_size)

    def ordered(self, split: SplitName, batch_size: int = 100, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield windows side by side; the last, as short as the text leaves it, comes alone."""
        tokens = getattr(self, split)
        whole, rest = divmod(len(tokens) - 1, self.context)
        starts = torch.arange(whole, device=tokens.device)[rank::world_size] * self.context
        for some in starts.split(max(1, batch_size)):
            yield _windows(tokens, some, self.context, self.device)
        if rest and rank == whole % world_size:
            yield _windows(tokens, starts.new_tensor([whole * self.context]), rest, self.device)

    def to(self, device: torch.device | str) -> Tokens:
        device = torch.device(device)
        train, val, test = place_tensors([self.train, self.val, self.test], device)
        return replace(self, train=train, val=val, test=test, device=device)

    def description(self) -> dict[str, list[Any]]:
        return {"mean": [], "std": [], "classes": list(self.vocabulary)}


class WindowBatches(Batches):
    """Endless stream of (windows int64 (b, context), the tokens that follow each of theirs (b, context)).

    An epoch is the text once, cut into windows side by side from a place on that is drawn anew.
    """

    def __init__(
        self, tokens: Tensor, context: int, batch_size: int, seed: int, device: torch.device, rank: int, world_size: int
    ) -> None:
        size = max(1, (len(tokens) - 1) // context - 1)  # the first window may start anywhere in the first `context`
        super().__init__(size, 16 * context, batch_size, seed, device, rank, world_size, "windows")
        self._tokens, self._context = tokens, context

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Return the windows in random order, and where the first of them starts."""
        room = min(self._context, len(self._tokens) - size * self._context)
        first = torch.randint(room, (1,), generator=generator).expand(size)
        return torch.stack([torch.randperm(size, generator=generator), first]).to(self._tokens.device)

    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        order, first = draws
        return _windows(self._tokens, order * self._context + first, self._context, self._device)


def _windows(tokens: Tensor, starts: Tensor, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return windows of a length, and the same one place further: int64 (b, length) each."""
    places = starts[:, None] + torch.arange(length + 1, device=tokens.device)
    found = tokens[places].to(device, non_blocking=True).long()
    return found[:, :-1], found[:, 1:]


def characters(
    name: str, text: str, context: int = 128, vocabulary: Sequence[str] | None = None, **kwargs: Any
) -> Tokens:
    """Return the data set of a text's characters: the first 90 % train, the next 5 % validate, the last 5 % test."""
    known = tuple(vocabulary or sorted(set(text)))
    numbers = {character: number for number, character in enumerate(known)}
    if missing := sorted(set(text) - set(known)):
        raise BadInput(f"data set {name}: the text has {missing[0]!r}, which is not in the vocabulary")
    kind = torch.int16 if len(known) < 2**15 else torch.int32
    tokens = torch.tensor([numbers[character] for character in text], dtype=kind)
    return _split(name, tokens, known, context, **kwargs)


def byte_tokens(name: str, data: bytes, context: int = 128) -> Tokens:
    """Return the data set of a file's bytes, in the parts of `characters`; any file will do, and any text fits."""
    tokens = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    return _split(name, tokens, tuple(bytes([b]).decode("latin-1") for b in range(256)), context)


def _split(name: str, tokens: Tensor, vocabulary: tuple[str, ...], context: int, **kwargs: Any) -> Tokens:
    first, second = (len(tokens) * share // 100 for share in (90, 95))
    parts = (tokens[:first], tokens[first:second], tokens[second:])
    return Tokens(name, *parts, vocabulary, context, **kwargs)
