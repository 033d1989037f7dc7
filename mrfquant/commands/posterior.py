"""mrfquant posterior: networks sampled from the learned distribution over labels, alone and averaged."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.errors import BadInput
from mrfquant.text import aligned

if TYPE_CHECKING:
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training.experiment import Experiment


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "posterior",
        """Average networks sampled from the learned distribution over labels, that of the run's best model. Once
        beta is at its cap every label is decided and all samples are the rounded network: stop the annealing
        early (a smaller Geometric.cap) for a distribution worth sampling from.""",
        ["runs/pmf_lenet300_digits-seed0-20260101-120000 --samples 1,5,20"],
    )
    p.add_argument("run", metavar="RUN", type=Path, help="the folder of a finished, quantized run")
    p.add_argument(
        "--samples", metavar="N,N", default="1,5,20", help="sizes of the ensembles, comma-separated (default: 1,5,20)"
    )
    p.share("--seed", help="seed of the samples (default: 0)")
    p.share("--device")
    p.share("--data")
    p.share("--import")
    p.share("--json")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the rounded network, the one of expected weights and the ensembles; print a table."""
    try:
        sizes = sorted({int(size) for size in arguments.samples.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise BadInput(f"--samples {arguments.samples!r}, expected whole numbers above 0, as in 1,5,20")
    import torch
    from tqdm import tqdm

    from mrfquant.storage.checkpoints import fitting
    from mrfquant.storage.files import write_json
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training.evaluation import predict

    folder = RunFolder.open(arguments.run)
    experiment = _rebuild(folder, arguments)
    best = folder.best()
    inference = experiment.inference
    with fitting(f"the best model of {folder.path} does not fit its config.gin"):
        experiment.model.load_state_dict(best["model"])  # batch-norm statistics; the weights follow
        inference.load_solution(best["solution"])
    if not inference.labelling.blocks:
        raise BadInput(f"{folder.path} is not quantized: there is no distribution over labels to sample from")

    data, objective = experiment.dataset, experiment.objective

    def predictions(weights: AbstractContextManager[None]) -> Any:
        with weights:
            return predict(experiment.model, data, "test", objective)

    found = {"rounded": objective.score(*predictions(inference.rounded()))}
    found["expected weights"] = objective.score(*predictions(nullcontext()))
    generator = torch.Generator(experiment.device).manual_seed(arguments.seed)
    total = 0
    for count in tqdm(range(1, sizes[-1] + 1), desc="sampling", leave=False, disable=None):
        drawn, targets = predictions(inference.sampled(generator))
        total = total + drawn
        if count in sizes:
            found[f"{count} sampled"] = objective.score(total / count, targets)
    entropy = inference.diagnostics()["entropy"]
    print(f"{folder.path}, iteration {inference.iteration:,}: entropy of the labels {entropy:.4f} bits per weight")
    rows = [["network", *(metric.title for metric in objective.scores)]]
    rows += [[name, *(m.text(figures[m.name]) for m in objective.scores)] for name, figures in found.items()]
    print(aligned(rows, right=set(range(1, len(rows[0])))))
    if data.stand_in:
        print("STAND-IN DATA: its figures mean nothing")
    if arguments.json:
        write_json(arguments.json, {"entropy": entropy, **found})
    return 0


def _rebuild(folder: RunFolder, arguments: argparse.Namespace) -> Experiment:
    """Build the experiment as it was configured, at its start.

    The folder may be a stranger's: modules that its configuration names are imported only if --import names them, too.
    """
    import mrfquant.rounding  # noqa: F401 - registers what configurations of rounded networks name
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.data import data_root
    from mrfquant.training.experiment import Experiment

    # The weights that it started from are not needed any more, and may be gone.
    config = Config(folder.config, ["Experiment.weights = None"], arguments.imports, trusted=False)
    with config.locate_errors():
        experiment = configured(Experiment, device=choose_device(arguments.device), data_root=data_root(arguments.data))
        experiment.trainer()  # prepares the solver
        return experiment


main = entry_point(parser, run)
