"""Round a language model block by block: weights are read when their block's turn comes, and its results are stored."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mrfquant.errors import BadInput
from mrfquant.labelling import LevelSet
from mrfquant.language.checkpoint import open_checkpoint
from mrfquant.language.decoder import Decoder
from mrfquant.language.progress import Progress
from mrfquant.language.targets import Target, level_set, target_of
from mrfquant.language.writers import check_model, size_of, write_model
from mrfquant.rounding import LayerReport, LayerSolver, Rounding
from mrfquant.rounding.call import choose_levels
from mrfquant.storage.files import read_text
from mrfquant.text import duration


@dataclass(frozen=True)
class BlockReport:
    """How a block was rounded.

    Attributes:
        name: name of the block.
        layers: how each of its layers was rounded.
        drift: squared distance of its outputs from those of the float model, over their squared size, on the test
            text; the blocks before it have their part in it.
        seconds: time taken.
        notes: layers that had few inputs.
    """

    name: str
    layers: list[LayerReport]
    drift: float
    seconds: float
    notes: list[str]

    @property
    def energy(self) -> float:
        """The mean energy of its layers, over gptq's; nan without any."""
        return sum(layer.relative for layer in self.layers) / len(self.layers) if self.layers else math.nan


@dataclass
class RoundedLanguageModel:
    """A language model that was rounded and written.

    Attributes:
        file: the file or folder that another program loads.
        target: the type of file.
        perplexity: on the test text.
        float_perplexity: of the float model on the same text.
        size: bytes of the file.
        bits: bits of a rounded weight in it, scales included.
        weights: number of rounded weights.
        parameters: number of parameters.
        blocks: how each block was rounded.
        notes: what stays in float, and what had few inputs.
        seconds: time taken, interruptions not included.
    """

    file: Path
    target: str
    perplexity: float
    float_perplexity: float
    size: int
    bits: float
    weights: int
    parameters: int
    blocks: list[BlockReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        layers = [layer for block in self.blocks for layer in block.layers]
        mean = sum(layer.relative for layer in layers) / len(layers)
        return "\n".join(
            [
                f"perplexity   {self.perplexity:.2f}, float {self.float_perplexity:.2f}",
                f"weights      {self.weights:,} of {self.parameters:,}, {self.bits:.3f} bits each with scales",
                f"energy       {mean:.3f} of gptq's, the mean over {len(layers)} layers",
                *([f"few inputs   {len(self.notes)} weights, as {self.notes[0]}"] if self.notes else []),
                f"time         {duration(self.seconds)}",
                f"{self.file}: {self.size:,} bytes",
            ]
        )


def round_language_model(
    model: str | os.PathLike[str],
    text: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str = "q2_0",
    solver: str | LayerSolver = "icm",
    exclude: Sequence[str] = (),
    windows: int = 16,
    length: int = 512,
    test: str | os.PathLike[str] | None = None,
    test_windows: int = 16,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> RoundedLanguageModel:
    """Round the linear layers in a language model's blocks, on the grid of the program that will run it.

    One block is in memory at a time. The same call goes on where an interrupted one stopped, and ends with the same
    file.

    Args:
        model: a folder of transformers, or a GGUF file.
        text: a text file to calibrate with.
        out: the folder to write to.
        to: the type of file, one of `mrfquant.language.TARGETS`.
        solver: as of `mrfquant.round_network`.
        exclude: patterns of names of weights or layers that stay in float, as ["model.layers.0.*"].
        windows: number of pieces of the text to calibrate with.
        length: tokens of a piece.
        test: a text file to measure perplexity on; by default what follows the calibration in `text`.
        test_windows: number of its pieces.
        seed: seed of all random choices.
        say: takes a line of progress.

    Returns:
        A report, which is also written.
    """
    target, folder = target_of(to), Path(out)
    checkpoint = open_checkpoint(Path(model))
    tokenizer = checkpoint.tokenizer()
    calibration, held_out = _texts(tokenizer, Path(text), test, windows, test_windows, length)
    rounding = Rounding(
        solver, seed=seed, group_size=target.group_size, zero_point=target.zero_point, scale_type=target.scale_type
    )
    asked = [checkpoint.identity(), asdict(target), vars(rounding), vars(rounding.solver), list(exclude)]
    asked += [calibration.tolist(), held_out.tolist()]
    text_of_call = json.dumps(asked, default=lambda value: type(value).__name__)
    progress = Progress(folder, hashlib.sha256(text_of_call.encode()).hexdigest())
    if (found := progress.finished()) is not None:
        return RoundedLanguageModel(
            **{**found, "file": folder / found["file"], "blocks": [_block_report(block) for block in found["blocks"]]}
        )
    decoder = Decoder(checkpoint)
    check_model(checkpoint, decoder, target)
    levels = _levels(decoder, target, exclude, say)
    job = _Job(decoder, rounding, levels, progress, say)
    result = job.run(calibration, held_out)
    result.file = write_model(folder, checkpoint, decoder, target, progress)
    result.target, result.bits, result.size = to, target.bits, size_of(result.file)
    progress.finish({**asdict(result), "file": result.file.name})
    return result


@dataclass
class _Job:
    """The parts needed to round one block after the other."""

    decoder: Decoder
    rounding: Rounding
    levels: dict[str, LevelSet]  # by the names of weights
    progress: Progress
    say: Callable[[str], None]

    @torch.no_grad()
    def run(self, calibration: Tensor, held_out: Tensor) -> RoundedLanguageModel:
        """Round every block that is not rounded yet, and measure perplexity."""
        decoder, count = self.decoder, len(self.decoder.blocks)
        first = decoder.embed(calibration)
        streams, stored = self.progress.read()
        reports = [_block_report(block) for block in stored]
        at, spent = len(reports), sum(block.seconds for block in reports)
        if not at:
            tests = decoder.embed(held_out)
            streams = {"float": first, "rounded": first.clone(), "float_test": tests, "rounded_test": tests.clone()}
        elif at < count:
            self.say(f"going on after {at} of {count} blocks")
        for index in range(at, count):
            began = time.perf_counter()
            notes: list[str] = []
            layers, streams = self._round_block(index, streams, notes)
            drift = _distance(streams["rounded_test"], streams["float_test"])
            reports.append(BlockReport(decoder.name_of(index), layers, drift, time.perf_counter() - began, notes))
            self.progress.write(streams, [asdict(block) for block in reports])
            spent += reports[-1].seconds
            left = spent / (index + 1) * (count - index - 1)
            told = f"block {index + 1:>3} of {count}  energy {reports[-1].energy:.3f} of gptq's  drift {drift:.3f}"
            self.say(told + (f"  {duration(left)} left" if left else ""))
        total = sum(p.numel() for p in decoder.model.parameters())
        labelled = {name: p.numel() for name, p in decoder.model.named_parameters() if name in self.levels}
        notes = [note for block in reports for note in block.notes]
        return RoundedLanguageModel(
            file=Path(),
            target="",
            perplexity=self._perplexity(held_out, streams["rounded_test"]),
            float_perplexity=self._perplexity(held_out, streams["float_test"]),
            size=0,
            bits=0.0,
            weights=sum(labelled.values()),
            parameters=total,
            blocks=reports,
            notes=notes,
            seconds=spent,
        )

    def _round_block(
        self, index: int, streams: dict[str, Tensor], notes: list[str]
    ) -> tuple[list[LayerReport], dict[str, Tensor]]:
        """Round a block; return reports of its layers, and what float and rounded blocks make of their inputs."""
        decoder, block = self.decoder, self.decoder.block(index)
        after = {"float": self._through(block, index, streams["float"].clone())}
        after["float_test"] = self._through(block, index, streams["float_test"])
        start = f"{decoder.name_of(index)}."
        levels = {name[len(start) :]: of for name, of in self.levels.items() if name.startswith(start)}
        layers: list[LayerReport] = []
        if levels:
            found = self.rounding.run(
                block,
                levels,
                streams["float"].split(1),
                lambda layer: None,
                lambda note: notes.append(start + note),
                lambda module, hidden: decoder.call(module, index, hidden),
                self.progress.journal(index),
                streams["rounded"].split(1),
                unreached=True,
            )
            self.progress.keep(index, {start + name: answer for name, answer in found.answers.items()})
            layers = found.layers
        after |= {name: self._through(block, index, streams[name]) for name in ("rounded", "rounded_test")}
        return layers, after

    def _through(self, block: nn.Module, index: int, hidden: Tensor) -> Tensor:
        """Replace the block's inputs by its outputs, in place."""
        for window in hidden.split(1):
            window.copy_(self.decoder.call(block, index, window))
        return hidden

    def _perplexity(self, tokens: Tensor, hidden: Tensor) -> float:
        """exp of the mean loss of every token but the first of a window."""
        losses = []
        for text, states in zip(tokens, hidden.split(1), strict=True):
            logits = self.decoder.logits(text[None], states)
            losses.append(functional.cross_entropy(logits[0, :-1], text[1:]).item())
        return math.exp(sum(losses) / len(losses))


def _levels(
    decoder: Decoder, target: Target, exclude: Sequence[str], say: Callable[[str], None]
) -> dict[str, LevelSet]:
    """Return the levels of each weight to round: those of the blocks' layers that are not excluded."""
    inside = decoder.index_of
    levels = choose_levels(decoder.model, level_set(target), exclude, {}, say, lambda name: inside(name) is not None)
    for name in levels:
        target.check(name, decoder.shapes[name])
    return levels


def _texts(
    tokenizer: Any, text: Path, test: str | os.PathLike[str] | None, windows: int, test_windows: int, length: int
) -> tuple[Tensor, Tensor]:
    """Return the tokens to calibrate with and those to test on, (windows, length) each."""
    if min(windows, test_windows) < 1 or length < 2:
        raise BadInput(f"{windows} and {test_windows} windows of {length} tokens: give at least one of two tokens")
    first = _tokens(tokenizer, text)
    needed, wanted = windows * length, test_windows * length
    second = _tokens(tokenizer, Path(test)) if test else first[needed:]
    if len(first) < needed:
        raise BadInput(
            f"{text} has {len(first):,} tokens, {windows} windows of {length} are {needed:,}: "
            "give a longer text, or fewer --windows"
        )
    if len(second) < length:
        raise BadInput(f"{test or text} has no {length} tokens left to measure perplexity on: give another --test")
    second = second[: min(wanted, len(second) // length * length)]
    return first[:needed].view(windows, length), second.view(-1, length)


def _tokens(tokenizer: Any, file: Path) -> Tensor:
    try:
        text = read_text(file)
    except UnicodeDecodeError:
        raise BadInput(f"{file} is no text in UTF-8") from None
    return torch.tensor(tokenizer(text, verbose=False).input_ids)


def _distance(one: Tensor, other: Tensor) -> float:
    return ((one - other).double().square().sum() / other.double().square().sum()).item()


def _block_report(stored: dict[str, Any]) -> BlockReport:
    return BlockReport(**{**stored, "layers": [LayerReport(**layer) for layer in stored["layers"]]})
