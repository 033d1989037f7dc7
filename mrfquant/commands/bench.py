"""mrfquant bench: measure what training and inference cost, against PyTorch and other libraries."""

import argparse
import importlib
import itertools
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.storage.files import write_json
from mrfquant.text import aligned

# Subject -> (what its table shows, the module of mrfquant.benchmarks and the function that measures it)
SUBJECTS = {
    "steps": ("Training step of PMF with d levels, against float", "networks", "measure_steps"),
    "parts": ("Parts of a step of LeNet-300, median ms of CPU", "parts", "measure_parts"),
    "memory": ("Memory of PMF with d levels and a scale a channel, 50 million weights", "memory", "measure_memory"),
    "projections": ("Projection and product, others against mrfquant", "projections", "measure_projections"),
    "energies": ("Steps with priors against first order alone", "energies", "measure_energies"),
    "curvature": ("Second moments against forward, pairwise against first order", "energies", "measure_curvature"),
    "round": ("Rounding a layer: energy against seconds", "rounding", "measure_rounding"),
    "mrf": ("Solvers on a random graph and on a grid of 4 labels", "mrf", "measure_fields"),
    "pack": ("Evaluation from packed weights, two levels, against float", "packed", "measure_packed"),
}


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "bench",
        """Time PMF's training step against plain PyTorch's, and the parts of mrfquant against peers, in turns in one
        process: ratios with quartiles. On a busy machine use --threads 1 --clock cpu.""",
        ["steps --models lenet300,lenet5 --peers", "--json speed.json --png speed.png"],
    )
    p.add_argument(
        "what",
        nargs="?",
        choices=SUBJECTS,
        metavar="SUBJECT",
        help=f"{', '.join(SUBJECTS)} (default: all of them, in minutes)",
    )
    p.add_argument(
        "--models",
        metavar="NAMES",
        default="lenet300,lenet5,resnet18,vgg16",
        help="comma-separated (default: all four)",
    )
    p.add_argument(
        "--seconds", metavar="S", type=float, default=6.0, help="for each comparison, or 3 rounds of it (default: 6)"
    )
    p.add_argument("--threads", metavar="N", type=int, default=2, help="CPU threads (default: 2)")
    p.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu leaves out the time of others (default: wall)"
    )
    p.add_argument(
        "--peers", action="store_true", help="compare with other libraries: torchao, entmax, PGMax, onnxruntime"
    )
    p.share("--json")
    p.share("--png", help="draw them there, too")
    return p


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the figures as aligned text, a row a line; rows with other columns than before start a new table."""
    tables = []
    for heads, rows in itertools.groupby(found.items(), key=lambda item: list(item[1])):
        lines = [["", *heads], *([name, *map(cell, figures.values())] for name, figures in rows)]
        tables.append(aligned(lines))
    return "\n\n".join(tables)


def cell(figure: float | dict[str, float]) -> str:
    """Return the text of a number, or of a ratio with its quartiles."""
    if not isinstance(figure, dict):
        return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
    spread = f" ({figure['low']:.3g} .. {figure['high']:.3g})" if "low" in figure else ""
    return f"{figure['ratio']:.3g}x{spread}"


def measured(subject: str, options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the rows of a subject, each as soon as it is known."""
    _, module, function = SUBJECTS[subject]
    return getattr(importlib.import_module(f"mrfquant.benchmarks.{module}"), function)(options)


def processor() -> str:
    """Return the name of the CPU, as far as it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def run(arguments: argparse.Namespace) -> int:
    """Measure and print tables."""
    for flag, least in (("seconds", 0), ("threads", 1)):
        if not getattr(arguments, flag) >= least:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected at least {least}")
    if arguments.png:
        need_extra("reports", "--png")
    import torch

    from mrfquant.benchmarks.networks import NETWORKS
    from mrfquant.benchmarks.timing import Options

    options = Options(arguments.seconds, tuple(arguments.models.split(",")), arguments.peers, arguments.clock)
    for name in options.models:
        if name not in NETWORKS:
            raise BadInput(f"there is no model {name!r} to time: choose among {', '.join(NETWORKS)}")
    torch.set_num_threads(arguments.threads)
    kind = {"cpu": processor(), "threads": arguments.threads, "python": platform.python_version()}
    kind |= {"torch": torch.__version__, "clock": arguments.clock}
    print(f"{kind['cpu']}, {kind['threads']} threads, torch {kind['torch']}")
    print(f"ratios of {arguments.clock} time: median (quartiles)")
    found: dict[str, dict[str, Any]] = {}
    for subject in [arguments.what] if arguments.what else SUBJECTS:
        rows = found[subject] = {}
        print(f"\n{SUBJECTS[subject][0]}", flush=True)
        print(f"measuring {subject} ...", end="", file=sys.stderr, flush=True)
        for name, figures in measured(subject, options):
            rows[name] = figures
            print(f" {name};", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr, flush=True)
        print(table(rows), flush=True)
    if arguments.json:
        write_json(arguments.json, {**kind, "found": found})
    if arguments.png:
        from mrfquant.benchmarks.picture import write_picture

        write_picture(arguments.png, {SUBJECTS[subject][0]: rows for subject, rows in found.items()})
    return 0


main = entry_point(parser, run)
