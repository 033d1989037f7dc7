"""How long a command takes to answer, against importing torch."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from mrfquant.benchmarks.timing import Options, Row, in_turns, ratios

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import mrfquant": ["-c", "import mrfquant"],
    "run --help": ["-m", "mrfquant", "run", "--help"],
}


def measure_startup(options: Options) -> Iterator[tuple[str, Row]]:
    """Time a Python that imports torch, and the others as ratios to it."""

    def process(arguments: list[str]) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    options = replace(options, clock="wall")  # the processes' own seconds are not this one's
    yield "start-up", ratios(in_turns({name: process(c) for name, c in COMMANDS.items()}, options))
