"""TensorBoard: the run's figures as event files inside its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mrfquant.config.extras import need_extra
from mrfquant.config.settings import configurable
from mrfquant.storage.run_folder import RunFolder
from mrfquant.training.collectors import Collector, Values

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
