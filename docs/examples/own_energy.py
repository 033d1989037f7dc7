"""An energy of your own: the first-order model of the loss, plus a cost for every weight that is not 0.

With the levels -1, 0 and 1 the cost is a unary prior: it prefers the label of the level 0, and no function of the
expected weight says the same, since a weight that is -1 or 1 with equal probability has the expectation 0, too.

Expected output, in about 10 seconds (the last digits depend on the machine): the larger the cost, the more weights
are 0.

    cost 0      test accuracy 97.00 %   zeros 31.3 %
    cost 1e-06  test accuracy 95.33 %   zeros 92.6 %
    cost 1e-05  test accuracy 95.67 %   zeros 97.5 %
"""

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits
from mrfquant.training import evaluate

STEPS = 600


class Sparse(mq.Energy):
    """The expectation under u of <g, w> + cost * (number of weights that are not 0)."""

    def __init__(self, cost: float) -> None:
        self.cost = cost

    def costs(self, block: mq.Block) -> Tensor:
        """Return the cost of every label of every weight: (d, m)."""
        q = block.q[:, None]
        return q * block.scaled(block.g.clone()) + self.cost * (q != 0)

    def value(self, p: mq.Distribution) -> Tensor:
        return (p.probabilities() * self.costs(p.block)).sum()

    def gradient(self, p: mq.Distribution) -> mq.Gradient:
        return mq.Gradient(marginals=self.costs(p.block))


def train(energy: mq.Energy, data: mq.Dataset) -> tuple[float, float]:
    """Test accuracy of a ternary network and the share of its weights that are 0, in percent."""
    torch.manual_seed(0)
    hidden = [nn.Linear(784, 100), nn.BatchNorm1d(100, affine=False), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, 10))
    labelling = mq.Labelling(model, levels=[-1, 0, 1])
    beta = mq.Geometric(rho=1.15, interval=10)
    adam = functools.partial(torch.optim.Adam, lr=0.005)
    solver = mq.ProximalMeanField(labelling, adam, beta, energy, form="planes")  # labels have costs of their own
    batches = data.stream(100, seed=0)
    for images, labels in (next(batches) for _ in range(STEPS)):
        functional.cross_entropy(model(images), labels).backward()
        solver.step()
    with solver.rounded():
        zeros = (labelling.labelled.w == 0).float().mean().item()
        return evaluate(model, data, "test")["top1"], 100 * zeros


if __name__ == "__main__":
    data = digits(Path())  # the images come with scikit-learn: there is no folder to read
    for cost in (0, 1e-6, 1e-5):
        accuracy, zeros = train(Sparse(cost), data)
        print(f"cost {cost:<6} test accuracy {accuracy:.2f} %   zeros {zeros:.1f} %", flush=True)
