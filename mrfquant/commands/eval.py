"""mrfquant eval: test a packed network or a run: accuracy, size, speed, labels."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.errors import BadInput
from mrfquant.text import aligned, printable

if TYPE_CHECKING:
    from mrfquant.packing import PackedNetwork
    from mrfquant.packing.file import Packed
    from mrfquant.training.experiment import Experiment


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "eval",
        """Test a packed network on its data set: accuracy, speed and bytes. For a run, test the best network, rounded
        and relaxed, and with --samples averages of networks drawn from its distribution over labels.""",
        ["model.safetensors --activations int8", "runs/mine --samples 1,5,20"],
    )
    p.add_argument("what", metavar="FILE|RUN", type=Path, help="a packed file, or the folder of a finished run")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--layers", action="store_true", help="list levels, labels and bytes by parameter, test nothing")
    how.add_argument("--samples", metavar="N,N", type=sizes, default=[], help="of a run: average so many networks")
    how.add_argument("--packed", action="store_true", help="compute from weights that stay packed in memory")
    how.add_argument(
        "--activations",
        choices=["float", "int8"],
        default="float",
        help="int8: 8 bits, by ONNX Runtime on the CPU (default: float)",
    )
    p.share("--seed", help="seed of the samples (default: 0)")
    for flag in ("--import", "--data", "--device", "--json"):
        p.share(flag)
    return p


def sizes(text: str) -> list[int]:
    """Return the sizes of ensembles in '1,5,20', in rising order."""
    try:
        found = sorted({int(size) for size in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers above 0, as in 1,5,20")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Show the layers, or test the network; print."""
    from mrfquant.storage.files import write_json

    is_run = arguments.what.is_dir()
    if is_run and (arguments.packed or arguments.activations != "float"):
        raise BadInput(f"{arguments.what} is a run: --packed and --activations are for what mrfquant pack makes of it")
    if arguments.samples and not is_run:
        raise BadInput(f"--samples draws networks of a run, {arguments.what} is no folder of one")
    show = show_layers if arguments.layers else evaluate_run if is_run else evaluate_file
    found = show(arguments)
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def show_layers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Print a line for every parameter; return how often each label occurs."""
    from mrfquant.packing import PackedNetwork, pack

    what = arguments.what
    network = pack(what) if what.is_dir() else PackedNetwork.read(what)
    shares = {name: label_shares(p) for name, p in network.parameters.items()}
    print(f"{what}: {network.title}")
    print(aligned(layer_table(network, shares)))
    return shares


def label_shares(p: Packed) -> list[float]:
    """Return how often each label of a parameter occurs, as shares of its weights."""
    counts = p.labels().flatten().int().bincount(minlength=len(p.levels))
    return (counts / max(1, p.numel)).tolist()


def layer_table(network: PackedNetwork, shares: dict[str, list[float]]) -> list[list[str]]:
    """Return rows of text: shape, levels, how often each label occurs, its entropy and bytes, for every parameter."""
    rows = [["parameter", "shape", "levels", "share of each label, %", "entropy, bits", "bytes"]]
    tied = network.tied()
    for name, p in network.parameters.items():
        entropy = sum(share * math.log2(1 / share) for share in shares[name] if share)
        percent = " ".join(f"{100 * share:.1f}" for share in shares[name]) if p.encoding != "trellis" else ""
        rows.append([name, "x".join(map(str, p.shape)), p.description, percent, f"{entropy:.3f}", f"{p.nbytes:,}"])
    for name, tensor in network.floats.items():
        rows.append([name, "x".join(map(str, tensor.shape)) or "1", "float", "", "", f"{tensor.nbytes:,}"])
    rows = [row for row in rows if row[0] not in tied]
    rows += [[name, f"is {other}", *[""] * 4] for name, other in tied.items()]
    return [[printable(cell) for cell in row] for row in rows]


def evaluate_file(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test a packed network, print and return its figures."""
    from mrfquant.compute import choose_device
    from mrfquant.config.plugins import import_plugin
    from mrfquant.packing import load, packed_network
    from mrfquant.packing.layers import pack_layers
    from mrfquant.packing.origin import dataset_of, objective_of
    from mrfquant.packing.runs import size_report
    from mrfquant.training.evaluation import predict

    for module in arguments.imports:
        import_plugin(module, "--import")
    file = arguments.what
    model = load(file, activations=arguments.activations)
    network = packed_network(model)
    device = choose_device("cpu" if arguments.activations == "int8" else arguments.device)
    dataset = dataset_of(network, file, arguments.data).to(device)
    objective = objective_of(network, file)
    if arguments.packed:
        model = pack_layers(model, network.parameters)
    model = model.to(device)
    start = time.perf_counter()
    predictions, targets = (found.cpu() for found in predict(model, dataset, "test", objective))  # waits for the device
    speed = len(targets) / (time.perf_counter() - start)
    figures = objective.score(predictions, targets)
    print(f"{file}: {network.title}")
    if dataset.stand_in:
        print("STAND-IN DATA: its figures mean nothing")
    chosen_by, *others = objective.scores
    print(chosen_by.line(figures, *others))
    print(f"speed        {speed:,.0f} {dataset.unit}/s on {device.type}")
    print("\n".join(size_report(network, size := file.stat().st_size)))
    return {**figures, "bytes": size, f"{dataset.unit}_per_second": speed}


def evaluate_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test a run's best network rounded, relaxed and as averages of samples; print and return the figures."""
    import torch
    from tqdm import tqdm

    from mrfquant.training.evaluation import predict

    experiment = best_of_run(arguments)
    data, objective, inference = experiment.dataset, experiment.objective, experiment.inference

    def predictions(weights: AbstractContextManager[None]) -> Any:
        with weights:
            return predict(experiment.model, data, "test", objective)

    found = {"rounded": objective.score(*predictions(inference.rounded()))}
    found["expected weights"] = objective.score(*predictions(nullcontext()))
    generator = torch.Generator(experiment.device).manual_seed(arguments.seed)
    total = 0
    for count in tqdm(range(1, max(arguments.samples, default=0) + 1), desc="sampling", leave=False, disable=None):
        drawn, targets = predictions(inference.sampled(generator))
        total = total + drawn
        if count in arguments.samples:
            found[f"{count} sampled"] = objective.score(total / count, targets)
    entropy = inference.diagnostics()["entropy"]
    print(f"{arguments.what}, iteration {inference.iteration:,}: entropy of the labels {entropy:.4f} bits per weight")
    rows = [["network", *(metric.title for metric in objective.scores)]]
    rows += [[name, *(m.text(figures[m.name]) for m in objective.scores)] for name, figures in found.items()]
    print(aligned(rows, right=set(range(1, len(rows[0])))))
    if data.stand_in:
        print("STAND-IN DATA: its figures mean nothing")
    return {"entropy": entropy, **found}


def rounded_to_trellis(record: Any) -> bool:
    """Return whether labels of a checkpoint's packing record are chains; False for what is no such record."""
    labels = record.get("labels") if isinstance(record, Mapping) else None
    entries = labels.values() if isinstance(labels, Mapping) else ()
    return any(isinstance(entry, Mapping) and "trellis" in entry for entry in entries)


def best_of_run(arguments: argparse.Namespace) -> Experiment:
    """Return the experiment of a run as configured, its best network and distribution over labels in place.

    The folder may be a stranger's: modules that its configuration names are imported only if --import names them, too.
    """
    import mrfquant.rounding  # noqa: F401 - registers what configurations of rounded networks name
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.data import data_root
    from mrfquant.storage.checkpoints import fitting
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training.experiment import Experiment

    folder = RunFolder.open(arguments.what)
    # The weights that it started from are not needed any more, and may be gone.
    config = Config(folder.config, ["Experiment.weights = None"], arguments.imports, trusted=False)
    with config.locate_errors():
        experiment = configured(Experiment, device=choose_device(arguments.device), data_root=data_root(arguments.data))
        experiment.trainer()  # prepares the solver
    best = folder.best()
    if rounded_to_trellis(best["packing"]):
        raise BadInput(f"{folder.path} is rounded to a trellis: pack it, and evaluate the file")
    with fitting(f"the best model of {folder.path} does not fit its config.gin"):
        experiment.model.load_state_dict(best["model"])  # batch-norm statistics; the weights follow
        experiment.inference.load_solution(best["solution"])
    if not experiment.labelling.blocks:
        raise BadInput(f"{folder.path} is not quantized: there is no distribution over labels to sample from")
    return experiment


main = entry_point(parser, run)
