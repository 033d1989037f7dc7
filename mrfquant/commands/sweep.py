"""mrfquant sweep: search settings with Optuna, chosen on validation."""

import argparse
import os
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin

from mrfquant.commands.parser import Parser, entry_point, run_command
from mrfquant.config.extras import need_extra
from mrfquant.config.gin_files import Config, shipped
from mrfquant.config.search_space import Dimension, read_space
from mrfquant.errors import BadInput, Diverged, RunFailed
from mrfquant.metric import Metric
from mrfquant.storage.files import write_text
from mrfquant.text import redacted

HEARTBEAT = 5  # seconds; a worker that is silent for three of them is taken for dead
REFUSED = ("IntegrityError", "ProgrammingError")  # SQLAlchemy's errors when something exists already


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "sweep",
        """Search the settings of a configuration with Optuna, chosen on validation. Every trial is a run under --out;
        those that fall behind are ended early. Interrupted or given more --trials, the sweep goes on; the best trial
        is written to best.gin.""",
        [
            "--gin gin/pmf_lenet300_mnist.gin --space gin/spaces/pmf.space --trials 20 --jobs 2",
            "--gin my.gin --space my.space --trials 50 --set 'Trainer.iterations = 5000' --out runs/search",
        ],
    )
    p.add_argument("--gin", metavar="FILE", required=True, help="the configuration to start from")
    p.add_argument("--space", metavar="FILE", type=Path, required=True, help="what to vary, as gin/spaces/pmf.space")
    p.add_argument("--trials", metavar="N", type=int, required=True, help="trials in all, over workers and sessions")
    p.share("--set")
    p.share("--import")
    p.share("--seed", help="seed of every trial and of the search (default: 0)")
    p.share("--jobs", help="workers; they share the cores (default: 1)")
    p.add_argument("--out", metavar="DIR", type=Path, help="the sweep's folder (default: runs/sweep-<config>)")
    p.add_argument(
        "--storage",
        metavar="URL",
        help="Optuna storage, without a password (default: $MRFQUANT_STORAGE, or sqlite in the sweep's folder)",
    )
    p.share("--device")
    p.share("--data")
    p.share("--wandb", default="disabled", help="Weights & Biases (default: disabled)")
    p.share("--smoke")
    return p


def sampler(seed: int) -> Any:
    """Return what proposes the settings of a trial."""
    import optuna

    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def open_study(arguments: argparse.Namespace, metric: Metric) -> Any:
    """Return the study in the storage, made if it is not there yet."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    storage = _storage(arguments.storage)
    return optuna.create_study(
        study_name=Path(arguments.gin).stem,
        storage=storage,
        direction="maximize" if metric.higher else "minimize",
        load_if_exists=True,
        sampler=sampler(arguments.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
    )


def _storage(url: str, tries: int = 3) -> Any:
    """Open the database and create its tables; retry, since it may refuse one of two that create them at once."""
    import optuna

    try:
        return optuna.storages.RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT,
            grace_period=3 * HEARTBEAT,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None,
        )
    except Exception as error:  # whatever the database's driver raises
        if tries > 1 and type(error).__name__ in REFUSED:
            time.sleep(1)
            return _storage(url, tries - 1)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(redacted(f"cannot open the storage {url}: {reason}")) from None


def run_trial(trial: Any, space: Sequence[Dimension], arguments: argparse.Namespace) -> float:
    """Train with the settings that the trial proposes; the best on validation is its value."""
    import optuna

    from mrfquant.training import Collector, Interrupted
    from mrfquant.training.launch import launch

    class Report(Collector):
        """Tells Optuna how the trial does, and ends it when Optuna says so."""

        def record(self, iteration: int, values: Any) -> None:
            if (found := values.get(f"val_{self.metric.name}")) is not None:
                trial.report(found, iteration)
                if trial.should_prune():
                    raise optuna.TrialPruned

    # A trial that was killed is tried again under a new number, with the same settings: it goes on in the same folder.
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    first = optuna.storages.RetryHeartbeatStaleTrialCallback.retried_trial_number(frozen)
    folder = arguments.out / f"trial-{trial.number if first is None else first:04d}"
    # A sampler for each trial: workers of several machines, which do not know of each other, would draw alike.
    trial.study.sampler = sampler(arguments.seed + 1000 * trial.number)
    chosen = [f"{dimension.binding} = {dimension.suggest(trial)!r}" for dimension in space]
    trial.set_user_attr("folder", str(folder))
    try:
        run = launch(
            arguments.gin,
            bindings=[*arguments.set, *chosen],
            imports=arguments.imports,
            seed=arguments.seed,
            smoke=arguments.smoke,
            out=folder,
            resume=True,
            device=arguments.device,
            data=arguments.data,
            wandb=arguments.wandb,
            collectors=[Report()],
        )
    except Diverged:  # the settings were no good; whatever else fails, as a full disk, says nothing about them
        raise optuna.TrialPruned from None
    except Interrupted:
        raise KeyboardInterrupt from None  # the run was asked to stop, and so is the sweep
    summary = run.summary()
    assert summary is not None
    return summary[f"best_val_{Metric.of(summary).name}"]


def _metric(arguments: argparse.Namespace) -> Metric:
    """Return what the trials are judged by, from the configuration's objective."""
    import mrfquant.training.experiment  # noqa: F401 - the names in the configuration
    from mrfquant.config.gin_internals import isolated_gin
    from mrfquant.objectives import CrossEntropy

    with isolated_gin():
        Config(arguments.gin, arguments.set, arguments.imports)
        try:
            recipe = gin.query_parameter("Experiment.objective").scoped_configurable_fn
        except ValueError:  # it is not bound
            recipe = CrossEntropy
        return recipe().primary_metric


def work(arguments: argparse.Namespace) -> int:
    """Run trials until the study has enough of them: what a worker does, in its process."""
    import optuna

    space, study = read_space(arguments.space), open_study(arguments, _metric(arguments))
    while len(ended(study)) < arguments.trials:
        optuna.storages.fail_stale_trials(study)  # those of workers that died; each comes again
        running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        if len(ended(study)) + len(running) >= arguments.trials:
            time.sleep(1)  # until they end, or turn out to be dead
            continue
        mine: list[int] = []

        def objective(trial: Any, mine: list[int] = mine) -> float:
            mine.append(trial.number)
            return run_trial(trial, space, arguments)

        try:
            study.optimize(objective, n_trials=1)
        except (KeyboardInterrupt, RunFailed, OSError) as error:  # no fault of the settings: they come again
            retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
            for number in mine:
                retry(study, study.get_trials(deepcopy=False)[number])
            if not isinstance(error, KeyboardInterrupt):
                raise
            return 130
    return 0


def ended(study: Any) -> list[Any]:
    """Return the trials that were trained to the end or pruned."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def lead(arguments: argparse.Namespace) -> int:
    """Start the workers, tell how their trials end, write the best one's configuration."""
    for flag in ("trials", "jobs"):
        if getattr(arguments, flag) < 1:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected at least 1")
    read_space(arguments.space)
    import mrfquant.training.experiment  # noqa: F401 - the names in the configuration
    from mrfquant.compute import background

    # A mistake in it is found here, not by every worker.
    config = Config(arguments.gin, arguments.set, arguments.imports)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {arguments.out}: {error.strerror}; give another --out") from None
    metric = _metric(arguments)
    study = open_study(arguments, metric)
    asked = {"config": config.text(), "space": arguments.space.read_text()}
    asked |= {"smoke": arguments.smoke, "seed": arguments.seed}
    if study.user_attrs.setdefault("asked", asked) != asked:
        raise BadInput(
            f"{redacted(arguments.storage)} holds a sweep of other settings, space or seed: give another --out"
        )
    study.set_user_attr("asked", asked)
    printed = {trial.number for trial in ended(study)}
    print(f"{arguments.trials} trials, {len(printed)} ended already; in {arguments.out}", flush=True)
    logs = [arguments.out / f"worker-{platform.node()}-{number}.log" for number in range(arguments.jobs)]
    workers = [background(run_command, work, arguments, log=log, jobs=arguments.jobs) for log in logs]
    try:
        while True:
            alive = any(worker.is_alive() for worker in workers)
            for trial in ended(study):
                if trial.number not in printed:
                    printed.add(trial.number)
                    print(f"[{len(printed)}/{arguments.trials}] {describe(trial, metric)}", flush=True)
            if not alive:
                break
            time.sleep(0.5)
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if failed := [worker for worker in workers if worker.exitcode]:
        lines = logs[workers.index(failed[0])].read_text().strip().splitlines()
        raise RunFailed(redacted(f"a worker ended early: {lines[-1] if lines else 'it said nothing'}"))
    if not any(trial.state.name == "COMPLETE" for trial in ended(study)):
        raise RunFailed(f"no trial was trained to the end: see {logs[0]}")
    best = study.best_trial
    write_text(arguments.out / "best.gin", (Path(best.user_attrs["folder"]) / "config.gin").read_text())
    print(f"best: {describe(best, metric)}\nit runs again with: mrfquant run --gin {arguments.out / 'best.gin'}")
    return 0


def describe(trial: Any, metric: Metric) -> str:
    """Return a trial in a line: how good on validation, and its settings."""
    values = list(trial.intermediate_values.values())
    best = (max if metric.higher else min)(values, default=0.0)
    figure = f"val {metric.text(trial.value)}" if trial.state.name == "COMPLETE" else f"pruned at {metric.text(best)}"
    settings = ", ".join(f"{k} = {v:.6g}" if isinstance(v, float) else f"{k} = {v}" for k, v in trial.params.items())
    return f"trial {trial.number}: {figure}  {settings}"


def run(arguments: argparse.Namespace) -> int:
    """Search."""
    need_extra("sweep", "sweep")
    arguments.space = shipped(arguments.space) or arguments.space
    arguments.out = arguments.out or Path("runs") / f"sweep-{Path(arguments.gin).stem}"
    given = arguments.storage or os.environ.get("MRFQUANT_STORAGE") or "sqlite"
    if not given.startswith("sqlite") and len(given.split()) > 1:
        raise BadInput("the URL of the storage has a blank, it is not repeated for what may be a password: write %20")
    if arguments.storage and redacted(arguments.storage) != arguments.storage:
        raise BadInput(
            f"--storage {redacted(arguments.storage)} has a password, which everybody on this machine could read in "
            "the list of processes: put the URL into the variable MRFQUANT_STORAGE, or the password into ~/.pgpass"
        )
    own = f"sqlite:///{arguments.out / 'study.db'}"
    arguments.storage = arguments.storage or os.environ.get("MRFQUANT_STORAGE") or own
    from optuna.exceptions import StorageInternalError

    try:
        return lead(arguments)
    except StorageInternalError as error:  # a full disk, a database that is gone
        reason = str(error.__cause__ or error).splitlines()[0]
        raise RunFailed(redacted(f"cannot write to the storage {arguments.storage}: {reason}")) from None


main = entry_point(parser, run)
