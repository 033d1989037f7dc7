"""From a configuration to a finished run: `mrfquant run`, sweeps and reproductions start theirs here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from mrfquant.compute import choose_device, join_team, noticing_lost_peers
from mrfquant.config.gin_files import Config, as_bindings
from mrfquant.config.settings import configured
from mrfquant.data import SplitName, data_root
from mrfquant.errors import BadInput, RunFailed
from mrfquant.metric import Metric
from mrfquant.storage.checkpoints import fitting
from mrfquant.storage.files import read_text
from mrfquant.storage.run_folder import RunFolder, changed_settings, new_run_path
from mrfquant.text import duration
from mrfquant.training.collectors import Collector, Console, JsonLines
from mrfquant.training.experiment import Experiment
from mrfquant.training.trackers import WandB, default_mode
from mrfquant.training.trainer import Interrupted, Trainer

Say = Callable[[str], None]
SPLITS: tuple[tuple[SplitName, str], ...] = (("train", "training"), ("val", "validation"), ("test", "test"))


@noticing_lost_peers()
def launch(
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    *,
    bindings: Sequence[str] = (),
    imports: Sequence[str] = (),
    weights: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    smoke: bool = False,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    data: str | None = None,
    wandb: Literal["online", "offline", "disabled"] | None = None,
    collectors: Sequence[Collector] = (),
) -> RunFolder:
    """Train and evaluate what a configuration describes, in a folder of its own.

    Args:
        config: a gin file; or its settings, as {"Experiment.model": LeNet300, "Trainer.iterations": 500}, with parts
            that gin knows; or None to continue a run.
        bindings: further settings, as in gin. They, `seed` and `smoke` become part of the run's own config.gin.
        imports: modules that register parts.
        weights: a state dict or a run to start from instead of a random network.
        out: the run's folder; a new one under runs/ by default.
        resume: continue the run that is in `out`, if there is one, as it was configured.
        device: 'auto', or as torch calls it.
        data: the data root.
        wandb: the mode of Weights & Biases.
        collectors: get the run's figures, too, beside those of Experiment.collectors.

    Returns:
        The folder of the finished run; its `summary()` has the results.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came; the run is saved and can be resumed.
    """
    resumed = resume and out is not None and RunFolder(out).config.exists()
    gone: list[str] = []
    if resumed and out is not None:
        folder = RunFolder.open(out)
        if folder.summary() is not None:
            return folder
        # Once there is a checkpoint, the weights that the run started from are not needed, and may be gone.
        gone = ["Experiment.weights = None"] if folder.checkpoints.any() else []
        read = Config(folder.config, gone)
    elif config is None:
        raise BadInput(f"there is no run in {out} to resume: give the folder of a run, or a config to start one")
    else:
        flags = [] if seed is None else [f"Experiment.seed = {seed}"]
        start = [] if weights is None else ["Experiment.start = 'weights'"]  # unless --set says 'labels'
        if weights is not None:
            flags += [f"Experiment.weights = {os.path.abspath(weights)!r}"]
        if isinstance(config, Mapping):
            bindings, config = [*as_bindings(config), *bindings], None
        read = Config(config, [*start, *bindings, *flags, *(["Experiment.smoke = True"] if smoke else [])], imports)
    team, where = join_team(choose_device(device))
    with read.locate_errors():
        experiment = configured(Experiment, device=where, data_root=data_root(data), team=team)
        experiment.check_trains()
        if not resumed:
            experiment.check_teacher()
        trainer = experiment.trainer()
        read.check_all_used()
    with StopRequest() as stop, ExitStack() as held:  # before there is a folder, so that nothing is left unsaid in it
        if not resumed:
            path = Path(team.agree(str(out or new_run_path(Path("runs"), read.name, experiment.seed))))
            folder = held.enter_context(RunFolder.create(path, read.text())) if team.leads else RunFolder(path)
        elif team.leads:
            held.enter_context(folder.owned())
        if resumed and team.any(folder.summary() is not None, where):  # another process has ended it meanwhile
            return folder
        try:
            console = Console(folder.log) if team.leads else Console(Path(os.devnull), open(os.devnull, "w"))  # noqa: SIM115
        except OSError as error:
            raise RunFailed(f"cannot write {folder.log}: {error.strerror}") from None
        held.callback(console.close)
        try:
            if team.leads:
                folder.write_environment(where)
                if not gone:  # or it is there, with the weights that the run started from
                    folder.write_operative(read.operative())
                folder.write_identity({**experiment.identity(), "iterations": trainer.iterations})
            _introduce(console.say, experiment, trainer, folder)
            if team.leads or resumed:  # the leader writes a new folder, and the others may be ahead of it
                folder.checkpoints.config = read_text(folder.config)
            if resumed:
                _restore(console.say, trainer, folder)
            listeners: list[Collector] = []
            if team.leads:
                chosen = [*collectors, *experiment.collectors]
                mode = wandb or default_mode()
                if mode != "disabled" and not any(isinstance(c, WandB) for c in chosen):
                    chosen.append(WandB(mode))
                listeners = [console, JsonLines(folder.metrics), *chosen]
            for listener in listeners:
                listener.open(folder)
            _train(trainer, experiment, folder, listeners, stop)
            _conclude(console.say, folder, experiment.objective.metrics)
            return folder
        except Interrupted as stopped:
            stopped.signal = stop.signal or signal.SIGTERM
            again = f"mrfquant run --resume {folder.path}"
            console.say(f"stopped at iteration {trainer.iteration:,}; go on with: {again}")
            raise
        except (RunFailed, BadInput) as error:
            console.say(f"the run did not finish: {error}")
            raise
        except OSError as error:
            raise RunFailed(f"cannot write {error.filename or folder.path}: {error.strerror}") from None


@noticing_lost_peers()
def _train(
    trainer: Trainer, experiment: Experiment, folder: RunFolder, collectors: Sequence[Collector], stop: StopRequest
) -> None:
    """Run the loop, write the summary; the collectors hear of the end, whatever it is."""
    summary = None
    try:
        result = trainer.run(folder.checkpoints, collectors, stop)
        summary = {**experiment.identity(), "iterations": trainer.iterations, **result}
        speed = trainer.iterations / max(trainer.seconds, 1e-9)
        summary |= {"seconds": trainer.seconds, "steps_per_second": speed, "threads": torch.get_num_threads()}
        if experiment.team.leads:
            folder.write_summary(summary)
    finally:
        for collector in collectors:
            collector.finish(summary)


def _introduce(say: Say, experiment: Experiment, trainer: Trainer, folder: RunFolder) -> None:
    """Say what is about to run."""
    who, data = experiment.identity(), experiment.dataset
    if data.stand_in:
        say(f"STAND-IN DATA of the shape of {who['dataset']}: shows that the config works, its figures mean nothing")
    bits = "" if who["bits"] == 32 else f"{who['bits']}-bit "
    processes = f"{experiment.team.world_size} x " if experiment.team.world_size > 1 else ""
    where = f"{processes}{experiment.device.type}{' in bfloat16' if trainer.low else ''}"
    say(f"{who['method']}  {bits}{who['model']} on {who['dataset']}, seed {who['seed']}, on {where}")
    say(f"{who['parameters']:,} parameters, {who['labelled']:,} of them quantized; {trainer.iterations:,} iterations")
    sizes = (f"{data.size(split):,} {word}" for split, word in SPLITS)
    say(f"{', '.join(sizes)} {data.unit}")
    say(f"folder {folder.path}")


def _restore(say: Say, trainer: Trainer, folder: RunFolder) -> None:
    """Load the newest checkpoint that is whole."""
    state = folder.checkpoints.newest(say)
    if state is None:
        say("no checkpoint yet: starting from the beginning")
        return
    if changed := changed_settings(state["config"], folder.checkpoints.config or ""):
        raise BadInput(
            f"{folder.path} cannot be resumed, its config.gin was changed since its last checkpoint: "
            f"{', '.join(changed)}; put it back, or start another run with --gin {folder.config}"
        )
    with fitting(f"{folder.path} cannot be resumed, its checkpoint is of another config.gin than is there"):
        trainer.load_state_dict(state)
    say(f"going on from iteration {trainer.iteration:,}")


def _conclude(say: Say, folder: RunFolder, metrics: Sequence[Metric]) -> None:
    """Say how it ended."""
    if (summary := folder.summary()) is None:
        return  # another process of the team writes it
    stand_in = " (STAND-IN DATA)" if summary["stand_in"] else ""
    say("")
    chosen, *others = metrics
    figures = {m.name: summary[f"test_{m.name}"] for m in metrics if f"test_{m.name}" in summary}
    say(chosen.line(figures, *others) + stand_in)
    best = chosen.text(summary[f"best_val_{chosen.name}"])
    say(f"validation   {best} at iteration {summary['best_iteration']:,}, the best")
    decided = next((record["decided"] for record in reversed(folder.records()) if "decided" in record), 1.0)
    if decided < 0.95:
        undecided = f"{1 - decided:.1%} of the weights were undecided at the end, so rounding changed the network"
        say(f"note         {undecided}: let beta end higher")
    say(f"time         {duration(summary['seconds'])}, {summary['steps_per_second']:,.4g} steps/s")
    say(f"results in   {folder.path}")


class StopRequest:
    """True once Ctrl-C or SIGTERM came within the block, in the main thread; asked again, the process stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def __call__(self) -> bool:
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
