"""mrfquant eval: how good, how small and how fast a packed network is."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from mrfquant.commands.parser import Parser, run_command
from mrfquant.errors import BadInput


def parser() -> Parser:
    """The command's arguments."""
    p = Parser(
        "eval",
        "Test a packed network on its data set: how good, how fast, and what takes how many bytes.",
        ["model.safetensors", "model.safetensors --packed"],
    )
    p.add_argument("file", metavar="FILE", type=Path, help="a file written by mrfquant pack")
    p.add_argument("--packed", action="store_true", help="keep the weights packed in memory and compute from them")
    p.share("--import")
    p.share("--data")
    p.share("--device")
    p.share("--json")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Load, predict the test split, print."""
    from mrfquant import data
    from mrfquant.commands.pack import account
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import named_part
    from mrfquant.config.plugins import import_plugin
    from mrfquant.data import STAND_IN, STAND_INS, data_root
    from mrfquant.objectives import CrossEntropy, Objective
    from mrfquant.packing import load, packed_network
    from mrfquant.storage.files import write_json
    from mrfquant.training.evaluation import predict

    for module in arguments.imports:
        import_plugin(module, "--import")
    model = load(arguments.file)
    network = packed_network(model)
    chosen = network.origin.get("data", {"loader": network.origin.get("dataset")})
    chosen = dict(chosen) if isinstance(chosen, dict) else {}
    name, temperature = chosen.pop("loader", None), network.origin.get("temperature", 1)
    if not isinstance(name, str) or name not in data.DATASETS:
        raise BadInput(f"{arguments.file} is for the data set {name!r}, known are {', '.join(data.DATASETS)}")
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise BadInput(f"{arguments.file} gives the temperature {temperature!r}, expected a number above 0")
    device = choose_device(arguments.device)
    standing_in = network.origin.get("stand_in") and name in STAND_INS
    try:
        dataset = data.DATASETS[name](STAND_IN if standing_in else data_root(arguments.data), **chosen).to(device)
    except TypeError:
        raise BadInput(f"{arguments.file} gives settings that the data set {name} does not have") from None
    kind = network.origin.get("objective", "CrossEntropy")
    if kind == "CrossEntropy":
        objective: Objective = CrossEntropy(temperature=temperature)
    else:
        objective = named_part(str(kind), Objective)()
    if tuple(network.arguments.get("shape", ())) != dataset.shape:
        raise BadInput(f"{arguments.file} is for inputs of another shape than those of {name}")
    if arguments.packed:
        from mrfquant.packing.layers import pack_layers

        model = pack_layers(model, network.parameters)
    model = model.to(device)
    start = time.perf_counter()
    predictions, targets = (found.cpu() for found in predict(model, dataset, "test", objective))  # waits for the device
    seconds = time.perf_counter() - start
    figures = objective.score(predictions, targets)
    print(f"{arguments.file}: {network.title}")
    if dataset.stand_in:
        print("STAND-IN DATA: its figures mean nothing")
    chosen_by, *others = objective.scores
    print(chosen_by.line(figures, *others))
    print(f"speed        {len(targets) / seconds:,.0f} {dataset.unit}/s on {device.type}")
    for line in account(network, arguments.file.stat().st_size):
        print(line)
    if arguments.json:
        figures |= {"bytes": arguments.file.stat().st_size, f"{dataset.unit}_per_second": len(targets) / seconds}
        write_json(arguments.json, figures)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, parser().parse_args(argv))
