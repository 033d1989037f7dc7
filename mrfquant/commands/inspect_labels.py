"""mrfquant inspect: what is in a packed file or a run, layer by layer."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.text import aligned, printable

if TYPE_CHECKING:
    from mrfquant.packing import PackedNetwork, PackedParameter


@dataclass
class Row:
    """A parameter: how often each label occurs."""

    name: str
    parameter: PackedParameter
    shares: list[float]

    @property
    def entropy(self) -> float:
        """Return the entropy of the labels, in bits."""
        return max(0.0, -sum(p * math.log2(p) for p in self.shares if p))


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "inspect",
        """Show shape, levels, label histogram, entropy and bytes of every parameter. Entropy is that of the labels
        of a parameter, in bits a weight: what an ideal compressor would leave.""",
        ["model.safetensors", "runs/pmf_lenet300_digits-seed0-20260101-120000 --png labels.png"],
    )
    p.add_argument("what", metavar="FILE|RUN", type=Path, help="a packed file, or the folder of a quantized run")
    p.share("--png", help="draw the histograms there")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Print the table, draw the histograms."""
    if arguments.png:
        need_extra("reports", "--png")
    from mrfquant.packing import PackedNetwork, pack

    network = pack(arguments.what) if arguments.what.is_dir() else PackedNetwork.read(arguments.what)
    rows = histogram(network)
    if not rows:
        raise BadInput(f"{arguments.what} holds no packed parameter: there are no labels to count")
    print(f"{arguments.what}: {network.title}")
    print(table(rows, network))
    if arguments.png:
        draw(rows, arguments.png)
        print(f"histograms in {arguments.png}")
    return 0


def histogram(network: PackedNetwork) -> list[Row]:
    """Return how often each label occurs, for every packed parameter."""
    rows = []
    tied = network.tied()
    for name, p in ((name, p) for name, p in network.parameters.items() if name not in tied):
        counts = p.labels().flatten().int().bincount(minlength=len(p.levels)).tolist()
        rows.append(Row(name, p, [count / max(1, p.numel) for count in counts]))
    return rows


def table(rows: list[Row], network: PackedNetwork) -> str:
    """Return the figures as aligned text."""
    lines = [["parameter", "shape", "levels", "bits", "share of each label, %", "entropy", "bytes"]]
    for row in rows:
        p = row.parameter
        lines.append(
            [
                printable(row.name),
                "x".join(map(str, p.shape)),
                " ".join(f"{q:g}" for q in p.levels) + _scale(p),
                f"{8 * p.data.numel() / max(1, p.numel):.2f}",
                " ".join(f"{100 * share:.1f}" for share in row.shares),
                f"{row.entropy:.3f}",
                f"{p.nbytes:,}",
            ]
        )
    tied = network.tied()
    for name, tensor in network.floats.items():
        if name not in tied:
            shape = "x".join(map(str, tensor.shape)) or "1"
            bits = f"{8 * tensor.element_size()}"
            lines.append([printable(name), shape, "float", bits, "", "", f"{tensor.nbytes:,}"])
    lines += [[printable(name), f"is {printable(other)}", *[""] * 5] for name, other in tied.items()]
    return aligned(lines)


def _scale(p: PackedParameter) -> str:
    """Return what multiplies the levels."""
    if p.scale is None:
        return ""
    return " x scale" if p.group_size is None else f" x scale of {p.group_size}"


def draw(rows: list[Row], path: Path) -> None:
    """Draw a small bar chart for each parameter."""
    from mrfquant.reports.figures import png

    columns = min(4, len(rows))
    height = math.ceil(len(rows) / columns)
    with png(path, 2.6 * columns, 1.9 * height, dpi=130) as figure:
        for i, row in enumerate(rows):
            axes = figure.add_subplot(height, columns, i + 1)
            d = len(row.shares)
            axes.bar(range(d), [100 * share for share in row.shares], color="#4477aa", width=0.6)
            if d <= 16:
                axes.set_xticks(range(d), [f"{q:g}" for q in row.parameter.levels])
            axes.set_title(f"{row.name}  {'x'.join(map(str, row.parameter.shape))}", fontsize=7)
            axes.set_ylim(0, 100)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
            if i % columns == 0:
                axes.set_ylabel("% of weights", fontsize=7)


main = entry_point(parser, run)
