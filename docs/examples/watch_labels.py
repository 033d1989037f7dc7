"""Watch labels being decided: histograms of a layer's weights while beta grows, drawn into watch_labels.png.

Each panel has the test accuracy of the relaxed network, which computes with expected weights, and of the rounded one,
whose weights are exactly -1 or 1.

Expected output:

    step   0  beta     1.0  relaxed 10.33 %  rounded 10.67 %
    step 120  beta     4.6  relaxed 93.67 %  rounded 73.00 %
    step 240  beta    20.9  relaxed 95.00 %  rounded 89.67 %
    step 600  beta  2000.0  relaxed 96.33 %  rounded 96.00 %
"""

import sys

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import digits

STEPS, SNAPSHOTS = 600, (0, 120, 240, 600)
data = digits()
train, test = ((split.images.float() / 255, split.labels) for split in (data.train, data.test))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return 100 * (model.eval()(test[0]).argmax(1) == test[1]).float().mean().item()


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Flatten(), nn.Linear(784, 200), nn.BatchNorm1d(200, affine=False), nn.ReLU()),
    *(nn.Linear(200, 100), nn.BatchNorm1d(100, affine=False), nn.ReLU(), nn.Linear(100, 10)),
)
labelling = mq.Labelling(model, levels=[-1, 1])
solver = mq.ProximalMeanField(labelling, lambda p: torch.optim.Adam(p, lr=0.003), beta=mq.GeometricTo(end=2000.0))
solver.prepare(budget=STEPS)
figure = Figure(figsize=(10, 2.3), layout="constrained", dpi=150)
panels = figure.subplots(1, len(SNAPSHOTS), sharey=True)
for step in range(STEPS + 1):
    if step in SNAPSHOTS:
        relaxed = accuracy(model)
        with solver.rounded():
            rounded = accuracy(model)
        print(f"step {step:3}  beta {solver.beta:7.1f}  relaxed {relaxed:.2f} %  rounded {rounded:.2f} %", flush=True)
        panel = panels[SNAPSHOTS.index(step)]
        panel.hist(model[4].weight.detach().flatten(), bins=41, range=(-1, 1), color="#4477aa")
        panel.set_title(
            f"step {step}, β = {solver.beta:.3g}\nrelaxed {relaxed:.1f} %, rounded {rounded:.1f} %", fontsize=9
        )
        panel.set_yticks([])
        panel.spines[["top", "right", "left"]].set_visible(False)
        model.train()
    drawn = torch.randint(len(train[1]), (100,))
    functional.cross_entropy(model(train[0][drawn]), train[1][drawn]).backward()
    solver.step()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "watch_labels.png")
