"""python -m mrfquant.bench: what training and inference cost, as ratios of things timed in turns in one process."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from mrfquant.command_line import Parser, aligned, guarded
from mrfquant.errors import BadInput
from mrfquant.files import write_json

TITLES = {
    "steps": "PMF with d levels against float, steps",
    "memory": "PMF with d levels against float, memory",
    "packed": "Evaluation from packed weights, two levels, against float: time and memory of the weights",
    "mrf": "An iteration on a random graph, and 100 iterations of belief propagation on a grid of 4 labels",
}


def parser() -> Parser:
    """The command's arguments."""
    p = Parser(
        "bench",
        """Time PMF's training step against plain PyTorch's, and solvers on fields against peers. A noisy machine slows
        both sides of a ratio alike; the spread over the rounds says how much to trust it.""",
        ["steps", "memory --json memory.json", "mrf --peers"],
    )
    p.add_argument(
        "what",
        choices=["steps", "memory", "mrf", "packed"],
        help="time per training step, bytes kept between steps, solvers on explicit fields, packed evaluation",
    )
    p.add_argument(
        "--models",
        metavar="NAMES",
        default="lenet300,lenet5,resnet18,vgg16",
        help="comma-separated (default: all four)",
    )
    p.add_argument("--rounds", metavar="N", type=int, default=7, help="turns that each side takes (default: 7)")
    p.add_argument("--threads", metavar="N", type=int, default=2, help="CPU threads (default: 2)")
    p.add_argument("--peers", action="store_true", help="compare with other libraries, too (mrf)")
    p.share("--json")
    return p


def table(found: dict[str, dict[str, Any]]) -> str:
    """The figures as aligned text, a network a line."""
    heads = list(next(iter(found.values())))
    rows = [["", *heads]]
    for name, figures in found.items():
        cells = [f"{figures[heads[0]]:.2f}"]
        for side in heads[1:]:
            spread = f" ({figures[side]['low']:.3f} .. {figures[side]['high']:.3f})" if "low" in figures[side] else ""
            cells.append(f"{figures[side]['ratio']:.3f}x{spread}")
        rows.append([name, *cells])
    return aligned(rows)


def networks(arguments: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """What to measure about each network."""
    from mrfquant.benchmarks.networks import measure_memory, measure_steps
    from mrfquant.benchmarks.networks import networks as known

    names = arguments.models.split(",")
    for name in names:
        if name not in known():
            raise BadInput(f"there is no model {name!r} to time: choose among {', '.join(known())}")
    measure = {"steps": measure_steps, "memory": measure_memory}[arguments.what]
    return {name: functools.partial(measure, name, arguments.rounds) for name in names}


def fields(arguments: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """What to measure on explicit fields."""
    from mrfquant.benchmarks.mrf import measure_belief_propagation, measure_mean_field

    return {
        "a million edges": functools.partial(measure_mean_field, arguments.rounds),
        "100 x 100 grid": functools.partial(measure_belief_propagation, arguments.rounds, arguments.peers),
    }


def packed(arguments: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """What to measure about packed layers; gives several rows at once."""
    from mrfquant.benchmarks.packed import measure_packed

    return {"packed layers": functools.partial(measure_packed, arguments.rounds)}


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    for flag in ("rounds", "threads"):
        if getattr(arguments, flag) < 1:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected at least 1")
    import torch

    torch.set_num_threads(arguments.threads)
    measurements = {"mrf": fields, "packed": packed}.get(arguments.what, networks)(arguments)
    found: dict[str, Any] = {}
    for name, measure in measurements.items():
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        found |= measure() if arguments.what == "packed" else {name: measure()}
    print(f"{TITLES[arguments.what]}; {arguments.threads} threads, torch {torch.__version__}")
    if arguments.what == "mrf":
        print("\n\n".join(table({name: figures}) for name, figures in found.items()))
    else:
        print(table(found))
    if arguments.json:
        write_json(arguments.json, {"torch": torch.__version__, "threads": arguments.threads, **found})
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return guarded(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
