"""Clean a noisy picture of digits with many solvers of fields, and draw what each makes of it: denoise.png.

Each pixel is a variable. A label costs the squared distance of its grey value to the noisy pixel over twice the
noise's variance; neighbours that differ cost SMOOTHNESS. Lower energy is better inference; fewer wrong pixels also
need the model to be good. A solver is named by its file in gin/mrf/:

    python docs/examples/denoise.py icm,max_product,alpha_expansion

Expected output, with rows for the other solvers, in half a minute:

    solver                     energy   wrong pixels   seconds
    icm                      -11969.3         5.64 %       0.2
    max_product              -12182.5         2.60 %       0.0
    alpha_expansion          -12182.5         2.60 %       0.0
"""

import sys

import networkx as nx
import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

import mrfquant as mq
from mrfquant.config.gin_files import Config
from mrfquant.config.settings import configured
from mrfquant.data import digits

SOLVERS = (
    "icm,sequential_mean_field,annealed_mean_field,proximal_mean_field,belief_propagation,max_product,tree_reweighted,"
    "dual_ascent,alpha_expansion,portfolio"
)
LABELS, NOISE, SMOOTHNESS = 2, 0.6, 1.2
GREYS = torch.linspace(0, 1, LABELS, dtype=torch.float64)
SECONDS = 5


def clean_and_noisy() -> tuple[torch.Tensor, torch.Tensor]:
    """The labels of six digits side by side, and their grey values with noise."""
    train = digits().train
    first = [int((train.labels == digit).nonzero()[0]) for digit in (2, 3, 5, 6, 8, 9)]
    tiles = [pad(train.images[i, 0], [3] * 4) for i in first]
    grey = torch.cat([torch.cat(tiles[:3], 1), torch.cat(tiles[3:], 1)]).double() / 255
    labels = (grey * (LABELS - 1)).round().long()
    noise = torch.randn(labels.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return labels, GREYS[labels] + NOISE * noise


def field_of(noisy: torch.Tensor) -> mq.FactorGraph:
    """The Potts model of a picture, a variable per pixel, row by row."""
    unary = -((noisy.flatten()[:, None] - GREYS) ** 2) / (2 * NOISE**2)
    return mq.potts(nx.grid_2d_graph(*noisy.shape), unary, SMOOTHNESS)


if __name__ == "__main__":
    labels, noisy = clean_and_noisy()
    field, solve = field_of(noisy), mq.solve  # which imports the solvers that the files name
    panels = [("clean", GREYS[labels]), ("noisy", noisy)]
    print(f"{'solver':24}{'energy':>9}{'wrong pixels':>15}{'seconds':>10}")
    for name in (sys.argv[1] if len(sys.argv) > 1 else SOLVERS).split(","):
        with Config(f"mrf/{name}.gin", [f"solve.seconds = {SECONDS}"]).locate_errors():
            result = configured(solve, graph=field, seed=0)
        wrong = 100 * (result.labels != labels.flatten()).double().mean().item()
        print(f"{name:24}{result.energy:9.1f}{wrong:13.2f} %{result.seconds:10.1f}", flush=True)
        title = f"{name.replace('_', ' ')}\nenergy {result.energy:.1f}, {wrong:.1f} % wrong"
        panels.append((title, GREYS[result.labels.view(labels.shape)]))
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    for i, (title, image) in enumerate(panels, 1):
        panel = figure.add_subplot(-(-len(panels) // 4), 4, i)
        panel.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(title, fontsize=9)
        panel.set_axis_off()
    figure.savefig("denoise.png")
