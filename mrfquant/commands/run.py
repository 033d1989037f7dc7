"""mrfquant run: train and evaluate the network that a gin file describes."""

import argparse
import os
from pathlib import Path

from mrfquant.commands.parser import Parser, run_command


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "run",
        """Train and evaluate the network that a gin file describes. Ctrl-C or SIGTERM saves the run and says how to
        go on; killed at any moment, it goes on from its last checkpoint with --resume.""",
        [
            "--gin gin/pmf_lenet300_digits.gin --set 'Trainer.iterations = 500' --seed 1",
            "--resume runs/pmf_lenet300_digits-seed0-20260101-120000",
        ],
        "0 finished, 1 the run failed, 2 bad input, 128 + signal when stopped (the run can be resumed)",
    )
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--gin", metavar="FILE", help="the configuration to run")
    what.add_argument("--resume", metavar="RUN", type=Path, help="continue a run from its newest checkpoint")
    p.share("--set")
    p.share("--import")
    p.add_argument("--weights", metavar="FILE|RUN", type=Path, help="start from a state dict or a run, not at random")
    p.share("--seed", default=None, help="seed of initialisation and data order (default: the config's, or 0)")
    p.share("--smoke")
    p.share("--device")
    p.share("--data")
    p.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: a new one under runs/)")
    p.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="continue the run in --out if there is one, as under torchrun",
    )
    p.share("--wandb", help="Weights & Biases (default: online with credentials, offline without)")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Launch the run, or continue it."""
    # Imported here so that --help and a mistyped flag answer at once.
    from mrfquant.metric import Metric
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training import Interrupted
    from mrfquant.training.launch import launch

    options = {"device": arguments.device, "data": arguments.data, "wandb": arguments.wandb}
    try:
        if not arguments.resume:
            launch(
                arguments.gin,
                bindings=arguments.set,
                imports=arguments.imports,
                weights=arguments.weights,
                seed=arguments.seed,
                smoke=arguments.smoke,
                out=arguments.out,
                resume=arguments.go_on,
                **options,
            )
        elif summary := RunFolder.open(arguments.resume).summary():
            print(f"{arguments.resume} is finished: {Metric.of(summary).of_test(summary)}")
        else:
            launch(None, out=arguments.resume, resume=True, **options)
    except Interrupted as stopped:
        return 128 + stopped.signal
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the command with these arguments."""
    p = parser()
    arguments = p.parse_args(argv)
    others = (
        arguments.set,
        arguments.imports,
        arguments.weights,
        arguments.seed is not None,
        arguments.smoke,
        arguments.out,
        arguments.go_on,
    )
    if arguments.resume and any(others):
        p.error("--resume continues a run as it was configured: only --device, --data, --wandb go with it")
    if arguments.go_on and arguments.out is None:
        p.error("--continue goes on with the run in a folder: give its --out")
    status = run_command(run, arguments)
    if "WORLD_SIZE" in os.environ:
        from mrfquant.compute import exit_process

        exit_process(status)
    return status
