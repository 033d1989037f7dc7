"""The parts of a run that has ended, for commands that work on its network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training.experiment import Experiment
    from mrfquant.training.trainer import Trainer


def rebuild(
    folder: RunFolder,
    device: str = "auto",
    data: str | None = None,
    bindings: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> tuple[Experiment, Trainer]:
    """The experiment as it was configured, at its start, and its trainer; `bindings` change settings.

    The folder may be a stranger's: modules that its configuration names are imported only if they are in `imports`.
    """
    import mrfquant.rounding  # noqa: F401 - registers what configurations of rounded networks name
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.data import data_root
    from mrfquant.training.experiment import Experiment

    # The weights that it started from are not needed any more, and may be gone.
    config = Config(folder.config, ["Experiment.weights = None", *folder.bindings(), *bindings], imports, trusted=False)
    with config.locate_errors():
        experiment = configured(Experiment, device=choose_device(device), data_root=data_root(data))
        return experiment, experiment.trainer()
