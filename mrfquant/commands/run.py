"""mrfquant run: train and evaluate the network that a gin file describes."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mrfquant.commands.parser import Parser, StopRequest, run_command
from mrfquant.errors import BadInput, RunFailed


def parser() -> Parser:
    """The command's arguments."""
    p = Parser(
        "run",
        """Train and evaluate the network that a gin file describes. Ctrl-C or SIGTERM saves the run and says how to
        go on; killed at any moment, it goes on from its last checkpoint with --resume.""",
        [
            "--gin gin/ref_lenet300_digits.gin",
            "--gin gin/ref_lenet300_digits.gin --set 'Trainer.iterations = 500' --seed 1",
            "--gin my.gin --import my_solver",
            "--resume runs/ref_lenet300_digits-seed0-20260101-120000",
        ],
        "0 finished, 1 the run failed, 2 bad input, 128 + signal when stopped (the run can be resumed)",
    )
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--gin", metavar="FILE", help="the configuration to run")
    what.add_argument("--resume", metavar="RUN", type=Path, help="continue a run from its newest checkpoint")
    p.share("--set")
    p.share("--import")
    p.share("--seed", default=None, help="seed of initialisation and data order (default: the config's, or 0)")
    p.share("--smoke")
    p.share("--device")
    p.share("--data")
    p.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: a new one under runs/)")
    p.share("--wandb", help="Weights & Biases (default: online with credentials, offline without)")
    return p


def run(arguments: argparse.Namespace, collectors: Sequence[Any] = ()) -> int:
    """Build the experiment, train it, write and print its summary; `collectors` get its figures, too."""
    # Imported here so that --help and a mistyped flag answer at once.
    from mrfquant.compute import choose_device, join_team, noticing_lost_peers
    from mrfquant.config.gin_files import Config
    from mrfquant.data import data_root
    from mrfquant.storage.run_folder import RunFolder, new_run_path
    from mrfquant.training import Console, Interrupted, JsonLines
    from mrfquant.training.experiment import Experiment

    resumed = arguments.resume is not None
    if resumed:
        folder = RunFolder.open(arguments.resume)
        if (summary := folder.summary()) is not None:
            print(f"{folder.path} is finished: test top-1 {summary['test_top1']:.2f} %")
            return 0
        config = Config(folder.config)
    else:
        config = Config(arguments.gin, bindings(arguments), arguments.imports)
    team, device = join_team(choose_device(arguments.device))
    with config.locate_errors():
        experiment = Experiment(device=device, data_root=data_root(arguments.data), team=team)
        trainer = experiment.trainer()
        config.check_all_used()
    with StopRequest() as stop, ExitStack() as held:  # before there is a folder, so that nothing is left unsaid in it
        trainer.should_stop = stop
        if not resumed:
            path = arguments.out or new_run_path(Path("runs"), config.file.stem, experiment.seed)
            path = Path(team.agree(str(path)))
            folder = RunFolder.create(path, config.text()) if team.leads else RunFolder(path)
        if team.leads:
            held.enter_context(folder.owned())
        console = Console(folder.log) if team.leads else Console(Path(os.devnull), open(os.devnull, "w"))  # noqa: SIM115
        try:
            if team.leads:
                folder.write_environment(device)
                folder.write_operative(config.operative())
            introduce(console.say, experiment, trainer, folder)
            if resumed:
                go_on(console.say, trainer, folder)
            trainer.checkpoints = folder.checkpoints
            if team.leads:
                wandb = wandb_collectors(arguments, experiment, folder)
                trainer.collectors = [console, JsonLines(folder.metrics), *wandb, *collectors]
            summary = None
            try:
                with noticing_lost_peers():
                    result = trainer.run()
                summary = {**experiment.identity(), "iterations": trainer.iterations, **result}
                speed = trainer.iterations / max(trainer.seconds, 1e-9)
                summary |= {"seconds": trainer.seconds, "steps_per_second": speed}
                if team.leads:
                    folder.write_summary(summary)
            finally:
                for collector in trainer.collectors:
                    collector.finish(summary)
            conclude(console.say, summary, folder)
            return 0
        except Interrupted:
            again = f"{parser().prog} --resume {folder.path}"
            console.say(f"stopped at iteration {trainer.iteration:,}; go on with: {again}")
            return 128 + (stop.signal or signal.SIGTERM)
        except (RunFailed, BadInput) as error:
            console.say(f"the run did not finish: {error}")
            raise
        except OSError as error:
            raise RunFailed(f"cannot write {error.filename or folder.path}: {error.strerror}") from None
        finally:
            console.close()


def bindings(arguments: argparse.Namespace) -> list[str]:
    """The overrides that the flags stand for; they are part of the run's own config.gin."""
    extra = list(arguments.set)
    if arguments.seed is not None:
        extra.append(f"Experiment.seed = {arguments.seed}")
    if arguments.smoke:
        extra.append("Experiment.smoke = True")
    return extra


def wandb_collectors(arguments: argparse.Namespace, experiment: Any, folder: Any) -> list[Any]:
    """The W&B collector, or none when it is disabled."""
    from mrfquant.config.gin_files import nested_settings
    from mrfquant.training.wandb_collector import WandB, default_mode

    mode = arguments.wandb or default_mode()
    if mode == "disabled":
        return []
    identity = experiment.identity()
    # Runs that differ in the seed only make a group: its name tells configurations apart, the seed left out.
    settings = [line for line in folder.config.read_text().splitlines() if not line.startswith("Experiment.seed")]
    digest = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:6]
    group = "-".join([identity["method"], identity["model"], identity["dataset"], digest]).replace(" ", "-")
    tags = [identity["method"], identity["model"], identity["dataset"], f"{identity['bits']}-bit"]
    tags += ["stand-in"] if experiment.smoke else []
    return [WandB(folder.path, mode, folder.path.name, group, tags, {**identity, **nested_settings()})]


def introduce(say: Any, experiment: Any, trainer: Any, folder: Any) -> None:
    """Say what is about to run."""
    who, data = experiment.identity(), experiment.dataset
    if data.stand_in:
        say(f"STAND-IN DATA of the shape of {who['dataset']}: shows that the config works, its figures mean nothing")
    bits = "" if who["bits"] == 32 else f"{who['bits']}-bit "
    processes = f"{experiment.team.world_size} x " if experiment.team.world_size > 1 else ""
    where = f"{processes}{experiment.device.type}"
    say(f"{who['method']}  {bits}{who['model']} on {who['dataset']}, seed {who['seed']}, on {where}")
    say(f"{who['parameters']:,} parameters, {who['labelled']:,} of them quantized; {trainer.iterations:,} iterations")
    say(f"{len(data.train):,} training, {len(data.val):,} validation, {len(data.test):,} test images")
    say(f"folder {folder.path}")


def go_on(say: Any, trainer: Any, folder: Any) -> None:
    """Load the newest checkpoint that is whole."""
    state = folder.checkpoints.newest(say)
    if state is None:
        say("no checkpoint yet: starting from the beginning")
    else:
        try:
            trainer.load_state_dict(state)
        except (BadInput, RuntimeError, ValueError, LookupError, TypeError) as error:  # torch's own where shapes differ
            reason = str(error).split("\n")[0].rstrip(": ")
            told = f"{folder.path} cannot be resumed, its checkpoint is of another config.gin than is there"
            raise BadInput(f"{told}: {reason}") from None
        say(f"going on from iteration {trainer.iteration:,}")


def conclude(say: Any, summary: dict[str, Any], folder: Any) -> None:
    """Say how it ended."""
    from mrfquant.text import duration

    stand_in = " (STAND-IN DATA)" if summary["stand_in"] else ""
    say("")
    say(f"test top-1   {summary['test_top1']:.2f} %   top-5 {summary['test_top5']:.2f} %{stand_in}")
    say(f"validation   {summary['best_val_top1']:.2f} % at iteration {summary['best_iteration']:,}, the best")
    say(f"time         {duration(summary['seconds'])}, {summary['steps_per_second']:,.4g} steps/s")
    say(f"results in   {folder.path}")


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    p = parser()
    arguments = p.parse_args(argv)
    others = (arguments.set, arguments.imports, arguments.seed is not None, arguments.smoke, arguments.out)
    if arguments.resume and any(others):
        p.error("--resume continues a run as it was configured: it goes with --device, --data and --wandb only")
    status = run_command(run, arguments)
    if "WORLD_SIZE" in os.environ:
        from mrfquant.compute import exit_process

        exit_process(status)
    return status
