"""Collectors of other programs: Weights & Biases and TensorBoard, every file of theirs inside the run's folder."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mrfquant.config.extras import need_extra
from mrfquant.config.gin_files import nested_settings
from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput
from mrfquant.storage.run_folder import RunFolder
from mrfquant.training.collectors import Collector, Values

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run


Mode = Literal["online", "offline", "disabled"]
RESULT_FILES = ("config.gin", "operative.gin", "env.json", "metrics.jsonl", "summary.json", "log.txt")


def default_mode() -> Mode:
    """Return the mode of W&B: online where it knows who you are, offline elsewhere; nothing ever prompts."""
    for mode in get_args(Mode):
        if os.environ.get("WANDB_MODE") == mode:
            return mode
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return "online" if netrc.exists() and "api.wandb.ai" in netrc.read_text(errors="ignore") else "offline"


@configurable
class WandB(Collector):
    """Starts a W&B run when training starts; `mrfquant run` has one by default, see --wandb.

    A resumed run starts a new W&B run in the same group and goes on counting iterations: W&B cannot resume offline,
    and syncing two offline runs under one id erases the first one's curves.

    Args:
        mode: online where W&B knows who you are, offline elsewhere by default.
    """

    def __init__(self, mode: Mode | None = None) -> None:
        self.mode = mode or default_mode()
        self._run: Run | None = None
        self._best: float | None = None

    def open(self, folder: RunFolder) -> None:
        self.folder = folder.path
        who = folder.identity()
        # Runs that differ in the seed only make a group: its name tells configurations apart, the seed left out.
        settings = [line for line in folder.config.read_text().splitlines() if not line.startswith("Experiment.seed")]
        digest = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:6]
        what = [who["method"], who["model"], who["dataset"]]
        self.identity: dict[str, Any] = {
            "name": folder.path.name,
            "group": "-".join([*what, digest]).replace(" ", "-"),
            "tags": [*what, f"{who['bits']}-bit", *(["stand-in"] if who["stand_in"] else [])],
            "config": {**who, **nested_settings()},
            "job_type": "train",
        }

    def start(self, iteration: int, iterations: int) -> None:
        for kind in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
            os.environ[f"WANDB_{kind}"] = str(self.folder / "wandb" if kind != "DIR" else self.folder)
        import wandb  # a second of start-up that a disabled collector does not pay

        settings = wandb.Settings(silent=True, console="off", x_disable_meta=True, x_disable_stats=True)
        try:
            run = self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "mrfquant"),
                dir=str(self.folder),  # the variable above is read once a process
                mode=self.mode,
                settings=settings,
                **self.identity,
            )
        except wandb.Error as error:  # no credentials, no connection
            reason = str(error).split("\n")[0].rstrip(".")
            raise BadInput(f"Weights & Biases cannot start ({reason}): log in, or give --wandb offline") from None
        run.define_metric("iteration")
        run.define_metric("*", step_metric="iteration")

    def record(self, iteration: int, values: Values) -> None:
        # A flat figure of the best so far: a summary="max" of W&B would turn the summary's entry into a dictionary.
        if (found := values.get(f"val_{self.metric.name}")) is not None:
            if self._best is None or self.metric.better(found, self._best):
                self._best = found
            values = {**values, f"best_val_{self.metric.name}": self._best}
        assert self._run is not None
        self._run.log({"iteration": iteration, **values})

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if self._run is not None:
            for key, value in (summary or {}).items():
                self._run.summary[key] = value
            if self.mode == "online":
                for name in RESULT_FILES:
                    self._run.save(str(self.folder / name), base_path=str(self.folder), policy="now")
            self._run.finish(exit_code=0 if summary else 1)


@configurable
class TensorBoard(Collector):
    """Writes to the folder `tensorboard` of the run; `tensorboard --logdir runs` shows all runs.

    A resumed run goes on in a file of its own from the iteration it was resumed at; TensorBoard drops what the first
    had recorded after it.
    """

    def __init__(self) -> None:
        need_extra("tensorboard", "TensorBoard")
        self._writer: SummaryWriter | None = None

    def open(self, folder: RunFolder) -> None:
        self._folder = folder

    def start(self, iteration: int, iterations: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder.path / "tensorboard"), purge_step=iteration + 1)
        if not iteration:
            self._writer.add_text("config", f"```\n{self._folder.config.read_text()}\n```")

    def record(self, iteration: int, values: Values) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        if self._writer is not None:
            self._writer.close()
