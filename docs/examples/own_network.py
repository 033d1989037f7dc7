"""A network of your own, trained in float first, then binary: PMF starts at the weights that it has.

The weights of the binary network take two values for each output of a layer; its biases stay in float.

Expected output:

    float               accuracy 95.67 %
    relaxed, at start   accuracy 95.67 %
    binary              accuracy 97.67 %
"""

import torch
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits

STEPS = 300
data = digits()
train, test = ((split.images.float() / 255, split.labels) for split in (data.train, data.test))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return 100 * (model(test[0]).argmax(1) == test[1]).float().mean().item()


def batches(steps: int):
    for _ in range(steps):
        drawn = torch.randint(len(train[1]), (100,))
        yield train[0][drawn], train[1][drawn]


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for images, labels in batches(STEPS):
    optimizer.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
print(f"float               accuracy {accuracy(model):.2f} %")

# Two levels for every weight, -1 and 1 times a scale for each output that is learned; biases stay as they are.
labelling = mq.Labelling(model, levels=[-1, 1], which="weights", scale="channel")
solver = mq.ProximalMeanField(
    labelling,
    lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    beta=mq.GeometricTo(end=1000.0),
    jacobian="straight_through",
    start="weights",
    learn_scale=True,
)
solver.prepare(budget=STEPS)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, STEPS)  # a solver is an optimizer like any other
print(f"relaxed, at start   accuracy {accuracy(model):.2f} %")
for images, labels in batches(STEPS):
    functional.cross_entropy(model(images), labels).backward()
    solver.step()
    schedule.step()
with solver.rounded():
    print(f"binary              accuracy {accuracy(model):.2f} %")
