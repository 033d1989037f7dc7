"""mrfquant pack: write the best model of a run as one small file."""

import argparse
from pathlib import Path

from mrfquant.commands.parser import Parser, entry_point, writable
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "pack",
        """Write the best model of a run as one file in which a label takes bits, not a float. Weights that are not
        exactly on their levels are refused. What is not quantized is stored as it is, and listed.""",
        [
            "runs/pmf_lenet300_digits-seed0-20260101-120000 -o model.safetensors",
            "RUN -o model.safetensors --onnx model.onnx --activations int8",
        ],
    )
    p.add_argument("run", metavar="RUN", type=Path, help="the folder of a finished, quantized run")
    p.add_argument("-o", "--out", metavar="FILE", type=writable, required=True, help="the file to write")
    p.add_argument("--base3", action="store_true", help="five labels of three levels in a byte, 1.6 bits a weight")
    p.add_argument("--compress", action="store_true", help="deflate the labels: for networks with many zeros")
    p.share("--import")
    p.add_argument("--onnx", metavar="FILE", type=writable, help="write the network as ONNX with packed weights, too")
    p.add_argument(
        "--activations",
        choices=["float", "int8"],
        default="float",
        help="of the ONNX file; int8: 8 bits, several times as fast in ONNX Runtime (default: float)",
    )
    p.share("--data")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Pack, write, say what takes how much."""
    if arguments.onnx:
        need_extra("onnx", "--onnx")
    elif arguments.activations != "float":
        raise BadInput(f"--activations {arguments.activations} is for an ONNX file: give --onnx FILE, too")
    from mrfquant.config.plugins import import_plugin
    from mrfquant.packing.runs import pack, size_report

    for module in arguments.imports:
        import_plugin(module, "--import")
    network = pack(arguments.run, "base3" if arguments.base3 else "bits")
    if arguments.base3 and not any(p.encoding == "base3" for p in network.parameters.values()):
        raise BadInput(f"--base3 is for three levels, {arguments.run} has none: leave it out")
    size = network.write(arguments.out, arguments.compress)
    for line in size_report(network, size, arguments.compress):
        print(line)
    print(f"written      {arguments.out}")
    if arguments.onnx:
        _export(arguments)
    return 0


def _export(arguments: argparse.Namespace) -> None:
    """Write the network as ONNX and say how it was checked."""
    from mrfquant.packing import load, packed_network
    from mrfquant.packing.onnx_export import CHECKED, export_onnx
    from mrfquant.packing.origin import dataset_of, objective_of
    from mrfquant.packing.runtime import RuntimeNetwork
    from mrfquant.training.evaluation import evaluate

    model = load(arguments.out)
    packed = packed_network(model)
    dataset = dataset_of(packed, arguments.out, arguments.data)
    exported = export_onnx(model, arguments.onnx, activations=arguments.activations, dataset=dataset)
    if arguments.activations == "float":
        print(f"verified     ONNX Runtime computes the same for {CHECKED} {dataset.unit} of the test set")
    else:
        metric = (objective := objective_of(packed, arguments.out)).primary_metric
        figures = evaluate(RuntimeNetwork(exported.data), dataset, "test", objective)
        in_float = packed.origin[metric.name]  # of the same weights, by the run
        print(f"activations  float: test {metric.title} {metric.text(in_float)}", end="; ")
        print(f"8 bits: {metric.text(figures[metric.name])}")
        print("".join(f"float        {name}\n" for name in exported.floats), end="")
    print(f"written      {arguments.onnx}, {len(exported.data):,} bytes")


main = entry_point(parser, run)
