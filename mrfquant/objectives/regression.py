"""Numbers for each input."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mrfquant.config.settings import configurable
from mrfquant.errors import BadInput
from mrfquant.metric import Metric
from mrfquant.objectives.base import Objective


@configurable
class Regression(Objective):
    """Outputs against numbers of the same shape, by the mean squared error; judged by its root and the mean error."""

    metrics = scores = (Metric("rmse", "RMSE", higher=False), Metric("mae", "mean error", higher=False))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise BadInput(
                f"the network gives outputs of shape {tuple(outputs.shape)} for targets of shape"
                f" {tuple(targets.shape)}: Regression needs the same"
            )
        return torch.nn.functional.mse_loss(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        error = outputs.float() - targets
        return torch.stack([error.square().sum(), error.abs().sum(), error.new_tensor(error.numel())])

    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        squared, absolute, count = sums
        return {"rmse": math.sqrt(squared / count), "mae": absolute / count}

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.float()

    def score(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        return self.figures(self.sums(predictions, targets).tolist())
