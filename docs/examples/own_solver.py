"""A solver of your own: Bop, which flips labels without latent weights, beside ProximalMeanField on the digits.

Bop (Helwegen et al., 2019, "Latent weights do not exist") keeps the running average of each weight's gradient. A
weight takes the other level when the average is large enough and says that the loss would fall.

Expected output, in about 10 seconds (the last digits depend on the machine):

    ProximalMeanField  test accuracy 97.33 %
    Bop                test accuracy 96.67 %
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.training import evaluate

STEPS = 1000


class Bop(mq.Inference):
    """Variables x of shape (2, m): the label of each weight, 0 or 1, and the average of its gradient."""

    method = "BOP"
    relaxed = False  # the network computes with the rounded weights at all times
    share = 0.01  # of a new gradient in the average
    threshold = 1e-4  # that the average has to pass

    def start(self, block: mq.Block, draw: Callable[[], Tensor]) -> Tensor:
        if not block.is_pair:
            raise mq.BadInput(f"Bop flips between two levels, there are {block.d}: set Labelling.levels to two")
        labels = block.nearest(block.levels.middle + draw()).to(block.w.dtype)
        return torch.stack([labels, torch.zeros_like(labels)])

    def gradient(self, block: mq.Block, x: Tensor) -> None:
        x[1].lerp_(block.g, self.share)  # there is nothing for the optimizer to move

    def project(self, block: mq.Block, x: Tensor) -> None:
        x[0] = torch.where(x[1].abs() > self.threshold, (x[1] < 0).to(x.dtype), x[0])
        block.write_labels(self.labels(block, x))

    def labels(self, block: mq.Block, x: Tensor) -> Tensor:
        return x[0].int()


def train(method: type[mq.Inference], data: mq.Dataset) -> float:
    """Test accuracy in percent of a network with the weights -1 and 1."""
    torch.manual_seed(0)
    hidden = [nn.Linear(784, 100), nn.BatchNorm1d(100, affine=False), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, 10))
    labelling = mq.Labelling(model, levels=[-1, 1])
    beta = mq.Geometric(rho=1.1, interval=10)  # Bop takes no notice of it
    solver = method(labelling, lambda tensors: torch.optim.Adam(tensors, lr=0.005), beta)
    batches = data.stream(100, seed=0)
    for images, labels in (next(batches) for _ in range(STEPS)):
        functional.cross_entropy(model(images), labels).backward()
        solver.step()
    with solver.rounded():
        return evaluate(model, data, "test")["top1"]


if __name__ == "__main__":
    data = digits(Path())  # the images come with scikit-learn: there is no folder to read
    for method in (mq.ProximalMeanField, Bop):
        print(f"{method.__name__:18} test accuracy {train(method, data):.2f} %", flush=True)
