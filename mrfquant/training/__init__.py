"""The training loop and what it needs: evaluation, checkpoints, collectors. It does not know which solver it runs."""

from mrfquant.storage.checkpoints import Checkpoints
from mrfquant.training.collectors import Collector, Console, JsonLines
from mrfquant.training.evaluation import evaluate
from mrfquant.training.hooks import Decide, Samples
from mrfquant.training.trackers import TensorBoard, WandB
from mrfquant.training.trainer import Hook, Interrupted, Trainer

__all__ = [
    "Checkpoints",
    "Collector",
    "Console",
    "Decide",
    "Hook",
    "Interrupted",
    "JsonLines",
    "Samples",
    "TensorBoard",
    "Trainer",
    "WandB",
    "evaluate",
]
