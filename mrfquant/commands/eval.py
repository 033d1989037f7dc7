"""mrfquant eval: how good, how small and how fast a packed network is."""

import argparse
import time
from pathlib import Path

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.errors import BadInput


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "eval",
        "Test a packed network on its data set: how good, how fast, and what takes how many bytes.",
        ["model.safetensors", "model.safetensors --packed", "model.safetensors --activations int8"],
    )
    p.add_argument("file", metavar="FILE", type=Path, help="a file written by mrfquant pack")
    p.add_argument("--packed", action="store_true", help="keep the weights packed in memory and compute from them")
    p.add_argument(
        "--activations",
        choices=["float", "int8"],
        default="float",
        help="int8: 8 bits, by ONNX Runtime on the CPU (default: float)",
    )
    p.share("--import")
    p.share("--data")
    p.share("--device")
    p.share("--json")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Load, predict the test split, print."""
    from mrfquant.compute import choose_device
    from mrfquant.config.plugins import import_plugin
    from mrfquant.packing import load, packed_network
    from mrfquant.packing.layers import pack_layers
    from mrfquant.packing.origin import dataset_of, objective_of
    from mrfquant.packing.runs import size_report
    from mrfquant.storage.files import write_json
    from mrfquant.training.evaluation import predict

    for module in arguments.imports:
        import_plugin(module, "--import")
    eight_bits = arguments.activations == "int8"
    if eight_bits and arguments.packed:
        raise BadInput("--packed computes from bits in PyTorch, --activations int8 in ONNX Runtime: choose one")
    model = load(arguments.file, activations=arguments.activations)
    network = packed_network(model)
    device = choose_device("cpu" if eight_bits else arguments.device)
    dataset = dataset_of(network, arguments.file, arguments.data).to(device)
    objective = objective_of(network, arguments.file)
    if arguments.packed:
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
    for line in size_report(network, arguments.file.stat().st_size):
        print(line)
    if arguments.json:
        figures |= {"bytes": arguments.file.stat().st_size, f"{dataset.unit}_per_second": len(targets) / seconds}
        write_json(arguments.json, figures)
    return 0


main = entry_point(parser, run)
