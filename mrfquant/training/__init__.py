"""The training loop and what it needs: evaluation, checkpoints, collectors. It does not know which solver it runs."""

from mrfquant.storage.checkpoints import Checkpoints as Checkpoints
from mrfquant.training.collectors import Collector as Collector
from mrfquant.training.collectors import Console as Console
from mrfquant.training.collectors import JsonLines as JsonLines
from mrfquant.training.evaluation import evaluate as evaluate
from mrfquant.training.hooks import Samples as Samples
from mrfquant.training.trackers import TensorBoard as TensorBoard
from mrfquant.training.trackers import WandB as WandB
from mrfquant.training.trainer import Hook as Hook
from mrfquant.training.trainer import Interrupted as Interrupted
from mrfquant.training.trainer import Trainer as Trainer
