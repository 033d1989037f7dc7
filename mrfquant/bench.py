"""python -m mrfquant.bench: how much quantized training costs, as ratios of things timed in turns in one process."""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrfquant.command_line import guarded
from mrfquant.errors import BadInput
from mrfquant.files import write_json

EPILOG = """examples:
  python -m mrfquant.bench steps
  python -m mrfquant.bench memory --json memory.json

A noisy machine slows both sides of a ratio alike; the spread over the rounds says how much to trust it."""

LEVELS = {2: (-1, 1), 4: (-2, -1, 1, 2)}


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="python -m mrfquant.bench",
        description="Compare a training step of PMF with a step of the same network in plain PyTorch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("what", choices=["steps", "memory"], help="time per step, or bytes kept between steps")
    p.add_argument("--models", default="lenet300,lenet5,resnet18,vgg16", help="comma-separated (default: all four)")
    p.add_argument("--rounds", type=int, default=7, help="turns that each side takes (default: 7)")
    p.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    p.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    return p


def networks() -> dict[str, tuple[Callable[[], Any], tuple[int, ...], int]]:
    """Name -> (recipe, shape of a batch, steps per turn)."""
    from mrfquant.models import VGG, LeNet5, LeNet300, ResNet

    mnist, cifar = (1, 28, 28), (3, 32, 32)
    return {
        "lenet300": (lambda: LeNet300(mnist, 10), (100, *mnist), 200),
        "lenet5": (lambda: LeNet5(mnist, 10), (100, *mnist), 10),
        "resnet18": (lambda: ResNet(cifar, 10), (128, *cifar), 1),
        "vgg16": (lambda: VGG(cifar, 10), (128, *cifar), 1),
    }


class Float:
    """A step in plain PyTorch: the network's own parameters, fused Adam."""

    def __init__(self, build: Callable[[], Any], shape: tuple[int, ...]) -> None:
        import torch

        torch.manual_seed(0)
        self.images, self.labels = torch.randn(shape), torch.randint(10, shape[:1])
        self.model = build()
        self.prepare(functools.partial(torch.optim.Adam, lr=1e-3, fused=True))

    def prepare(self, adam: Callable[..., Any]) -> None:
        self.optimizer = adam(self.model.parameters())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __call__(self) -> None:
        from torch.nn import functional

        functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.update()

    def tensors(self) -> list[Any]:
        """What is kept from step to step: parameters, gradients, optimizer state."""
        parameters = list(self.model.parameters())
        return [*parameters, *(p.grad for p in parameters), *_state(self.optimizer)]


class PMF(Float):
    """The same step with the weights on `d` levels."""

    def __init__(self, build: Callable[[], Any], shape: tuple[int, ...], d: int) -> None:
        self.d = d
        super().__init__(build, shape)

    def prepare(self, adam: Callable[..., Any]) -> None:
        from mrfquant.inference import ProximalMeanField
        from mrfquant.labelling import Labelling

        self.solver = ProximalMeanField(Labelling(self.model, LEVELS[self.d]), adam)

    def update(self) -> None:
        self.solver.step()

    def tensors(self) -> list[Any]:
        kept = [*self.model.parameters(), self.solver.labelling.labelled.g, *self.solver.variables]
        return [*kept, *self.solver._planes.values(), *_state(self.solver.optimizer)]


def _state(optimizer: Any) -> list[Any]:
    return [t for state in optimizer.state.values() for t in state.values() if hasattr(t, "untyped_storage")]


def in_turns(sides: dict[str, Callable[[], None]], steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every side in every round; the sides take turns, after a round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            for _ in range(steps):
                side()
            if turn:
                times[name].append((time.perf_counter() - start) / steps)
    return times


def measure_steps(name: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a float step, and the ratio of PMF's to it: median, lowest and highest of the rounds."""
    build, shape, steps = networks()[name]
    sides = {"float": Float(build, shape)} | {f"d={d}": PMF(build, shape, d) for d in LEVELS}
    times = in_turns(sides, steps, rounds)
    found: dict[str, Any] = {"float_ms": 1000 * statistics.median(times["float"])}
    for side in list(sides)[1:]:
        ratios = sorted(t / f for t, f in zip(times[side], times["float"], strict=True))
        found[side] = {"ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
    return found


def measure_memory(name: str, rounds: int) -> dict[str, Any]:
    """Megabytes that stay from step to step in a float run, and the ratio of PMF's to them."""
    build, (_, *image), _ = networks()[name]

    def kept(side: Float) -> int:
        side()  # fills the gradients and the optimizer's state
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in side.tensors()}
        return sum(storages.values())

    plain = Float(build, (2, *image))
    plain.optimizer.zero_grad = lambda: None  # keep the gradients, to count them
    reference = kept(plain)
    ratios = {f"d={d}": {"ratio": kept(PMF(build, (2, *image), d)) / reference} for d in LEVELS}
    return {"float_MB": reference / 1e6, **ratios}


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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    names = arguments.models.split(",")
    for name in names:
        if name not in networks():
            raise BadInput(f"there is no model {name!r} to time: choose among {', '.join(networks())}")
    for flag in ("rounds", "threads"):
        if getattr(arguments, flag) < 1:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected at least 1")
    import torch

    torch.set_num_threads(arguments.threads)
    measure = {"steps": measure_steps, "memory": measure_memory}[arguments.what]
    found = {}
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        found[name] = measure(name, arguments.rounds)
    print(f"PMF with d levels against float, {arguments.what}; {arguments.threads} threads, torch {torch.__version__}")
    print(table(found))
    if arguments.json:
        write_json(arguments.json, {"torch": torch.__version__, "threads": arguments.threads, **found})
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return guarded(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
