"""mrfquant pack: the best model of a run as one small file."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mrfquant.commands.parser import Parser, run_command, writable
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.text import printable

if TYPE_CHECKING:
    from mrfquant.objectives import Objective
    from mrfquant.packing import PackedNetwork
    from mrfquant.packing.bits import Encoding

CHECKED = 64  # examples that ONNX Runtime and PyTorch are compared on
STEPS = 0.2  # of the largest output: a rounding to 8 bits that falls the other way is carried on by later layers


def parser() -> Parser:
    """The command's arguments."""
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
    network = pack_run(arguments.run, "base3" if arguments.base3 else "bits", arguments.imports)
    if arguments.base3 and not any(p.encoding == "base3" for p in network.parameters.values()):
        raise BadInput(f"--base3 is for three levels, {arguments.run} has none: leave it out")
    size = network.write(arguments.out, arguments.compress)
    for line in account(network, size, arguments.compress):
        print(line)
    print(f"written      {arguments.out}")
    if arguments.onnx:
        _export(arguments)
    return 0


def pack_run(path: Path, encoding: Encoding = "bits", imports: Sequence[str] = ()) -> PackedNetwork:
    """The best model of a finished run; refuses one that is not quantized, or not on its levels.

    Args:
        imports: the modules of parts that are not the package's own.
    """
    import torch

    from mrfquant.commands.finished_run import rebuild
    from mrfquant.config.gin_internals import isolated_gin
    from mrfquant.objectives import CrossEntropy
    from mrfquant.packing import pack_model
    from mrfquant.storage.run_folder import RunFolder

    folder = RunFolder.open(path)
    best, summary = folder.best(), folder.summary() or {}
    with isolated_gin(), torch.random.fork_rng(devices=[]):
        smoke = ["Experiment.smoke = True"]  # the data's shape suffices
        experiment, _ = rebuild(folder, "cpu", bindings=smoke, imports=imports)
    if not experiment.labelling.blocks:
        raise BadInput(f"{path} is not quantized: there are no labels to pack; train it with levels, as [-1, 1]")
    data, objective = experiment.dataset, experiment.objective
    metric = objective.chooses
    origin = {
        **{key: experiment.identity()[key] for key in ("method", "dataset", "seed")},
        "run": folder.path.resolve().name,
        metric.name: round(summary[f"test_{metric.name}"], 4),
    }
    if list(data.arguments) != ["loader"] or data.arguments["loader"] != data.name:
        origin["data"] = data.arguments
    if type(objective.judge) is not CrossEntropy:
        origin["objective"] = type(objective.judge).__name__
    if objective.temperature != 1:
        origin["temperature"] = objective.temperature  # to divide the logits by, for probabilities
    if summary.get("stand_in"):
        origin["stand_in"] = True
    scale = best["solution"].get("scale")
    network = pack_model(experiment.model, experiment.labelling, best["model"], scale, encoding)
    network.images = data.description()
    network.origin = origin
    return network


def account(network: PackedNetwork, size: int, compressed: bool = False) -> list[str]:
    """What a file of `size` bytes consists of, line by line."""
    tied = network.tied()
    packed = [p for name, p in network.parameters.items() if name not in tied]
    weights = sum(p.numel for p in packed)
    labels = sum(p.nbytes - len(p.data) + len(p.stored(compressed)) for p in packed)
    floats = {name: t.nbytes for name, t in network.floats.items() if name not in tied}
    statistics = sum(n for name, n in floats.items() if _is_statistic(name))
    free = {name: n for name, n in floats.items() if not _is_statistic(name)}
    rest = size - statistics
    lines = [
        f"weights      {weights:,} on levels: {labels:,} bytes, {8 * labels / max(1, weights):.3f} bits each",
        f"header       {size - labels - sum(floats.values()):,} bytes",
        f"batch norm   {statistics:,} bytes of statistics, float",
    ]
    lines += [f"not packed   {printable(name)}, float: {n:,} bytes" for name, n in free.items()]
    parameters = 4 * weights + sum(free.values())
    share = f"1/{parameters / rest:.1f} of the parameters as float32"
    return [*lines, f"file         {size:,} bytes; without the statistics {rest:,}, {share}"]


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var"))


def objective_of(network: PackedNetwork, path: Path) -> Objective:
    """What a packed network was trained for."""
    from mrfquant.config.gin_files import named_part
    from mrfquant.objectives import CrossEntropy, Objective

    kind, temperature = network.origin.get("objective", "CrossEntropy"), network.origin.get("temperature", 1)
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise BadInput(f"{path} gives the temperature {temperature!r}, expected a number above 0")
    return CrossEntropy(temperature=temperature) if kind == "CrossEntropy" else named_part(str(kind), Objective)()


def _export(arguments: argparse.Namespace) -> None:
    """Write the network as ONNX, once ONNX Runtime has computed from it what PyTorch computes."""
    from mrfquant.packing import load, packed_network
    from mrfquant.packing.onnx_export import to_onnx
    from mrfquant.packing.origin import arguments_of, dataset_of, training_batches
    from mrfquant.packing.runtime import RuntimeNetwork, check_same
    from mrfquant.storage.files import atomic
    from mrfquant.training.evaluation import evaluate

    model = load(arguments.out)
    packed = packed_network(model)
    dataset = dataset_of(packed, arguments.out, arguments.data)
    batches = training_batches(dataset)
    inputs, keywords = batches[0]
    calibration = None if arguments.activations == "float" else batches
    names = ["images"] if dataset.unit == "images" else None
    about = {"images": json.dumps(packed.images), "origin": json.dumps(packed.origin)}
    exported = to_onnx(model, packed.parameters, inputs, keywords, names, calibration, metadata=about)
    network = RuntimeNetwork(exported.data)
    examples = arguments_of(next(iter(dataset.ordered("test", CHECKED)))[0])
    if calibration is None:
        check_same(network, model, *examples)
        print(f"verified     ONNX Runtime computes the same for {CHECKED} {dataset.unit} of the test set")
    else:
        check_same(network, RuntimeNetwork(exported.data, optimized=False), *examples, within=STEPS)
        metric = (objective := objective_of(packed, arguments.out)).chooses
        figures = evaluate(network, dataset, "test", objective)
        in_float = packed.origin[metric.name]  # of the same weights, by the run
        print(f"activations  float: test {metric.title} {metric.text(in_float)}", end="; ")
        print(f"8 bits: {metric.text(figures[metric.name])}")
        print("".join(f"float        {name}\n" for name in exported.floats), end="")
    with atomic(arguments.onnx) as file:
        file.write(exported.data)
    print(f"written      {arguments.onnx}, {len(exported.data):,} bytes")


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, parser().parse_args(argv))
