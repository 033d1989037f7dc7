"""mrfquant denoise: a noisy picture cleaned by many solvers, side by side in one PNG."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from mrfquant.mrf import FactorGraph, Result

SOLVERS = (
    "icm",
    "mean_field",
    "sequential_mean_field",
    "annealed_mean_field",
    "proximal_mean_field",
    "mirror_descent",
    "proximal_icm",
    "sparsemax_pgd",
    "belief_propagation",
    "max_product",
    "tree_reweighted",
    "dual_ascent",
    "alpha_expansion",
    "local_search",
)
DIGITS = ((2, 3, 5), (6, 8, 9))  # in the picture, row by row
MARGIN = 3  # pixels around each
PHOTOGRAPH = (400, 300)  # pixels in the middle of the photograph
ITERATIONS = 300


@dataclass
class Picture:
    """Grey values in [0, 1]: the truth as labels, and what is seen of it; (rows, columns) each."""

    labels: Tensor
    noisy: Tensor
    greys: Tensor  # of each label


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "denoise",
        """Clean a noisy picture, handwritten digits or a photograph, with many solvers and draw the results. A solver
        is a file of gin/mrf/, by its name there, or a gin file of your own. Each pixel is a variable.
        A label costs the squared distance of its grey value to the noisy pixel over twice the noise's variance;
        neighbours that differ cost --smoothness. Lower energy is better inference; fewer wrong pixels
        also need the model to be good. No labelling has an energy below the bound.""",
        [
            "",
            "--labels 4 --noise 0.5 --solvers icm,proximal_mean_field,max_product",
            "--picture photograph --labels 16 --noise 0.1 --seconds 60 --solvers icm,dual_ascent,alpha_expansion",
        ],
    )
    p.add_argument(
        "--picture",
        choices=["digits", "photograph"],
        default="digits",
        help="handwritten digits, or 400 x 300 pixels of the portrait that comes with matplotlib (default: digits)",
    )
    p.add_argument("--labels", metavar="N", type=int, default=2, help="grey values (default: 2)")
    p.add_argument("--noise", metavar="X", type=float, default=0.6, help="standard deviation (default: 0.6)")
    p.add_argument(
        "--smoothness", metavar="X", type=float, default=1.2, help="cost of unequal neighbours (default: 1.2)"
    )
    p.add_argument(
        "--solvers", metavar="NAMES", default=",".join(SOLVERS), help="comma-separated (default: %(default)s)"
    )
    p.add_argument("--seconds", metavar="N", type=float, help="of a start at most (default: no limit)")
    p.share("--import")
    p.share("--seed", help="seed of the noise and of the solvers (default: 0)")
    p.share("--device")
    p.share("--png", default=Path("denoise.png"), help="the picture to write (default: denoise.png)")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Solve with each solver, print a line each, draw."""
    from mrfquant.commands.infer import on_device, solver_file, time_limit

    names = [name.strip() for name in arguments.solvers.split(",")]
    files = {Path(name).stem: solver_file("--solvers", name) for name in names}
    limits = [f"solve.iterations = {ITERATIONS}", *time_limit("--seconds", arguments.seconds)]
    if not 2 <= arguments.labels <= 16:
        raise BadInput(f"--labels {arguments.labels}, expected a number from 2 to 16")
    for flag in ("noise", "smoothness"):
        if not 1e-6 <= getattr(arguments, flag) <= 1e6:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected a number above 0, from 1e-6 to 1e6")
    need_extra("reports", "denoise")
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.mrf import solve

    grey = digits_picture() if arguments.picture == "digits" else photograph()
    picture = make_picture(grey, arguments.labels, arguments.noise, arguments.seed)
    graph = on_device(make_field(picture, arguments.noise, arguments.smoothness), choose_device(arguments.device))
    truth = graph.energy(picture.labels.flatten().to(graph.device)).item()
    rows, columns = picture.labels.shape
    print(f"{rows} x {columns} pixels, {arguments.labels} labels; the clean picture has energy {truth:.1f}")
    print(f"{'solver':<24}{'energy':>12}{'bound':>12}{'wrong pixels':>15}{'seconds':>10}{'iterations':>12}", flush=True)
    results: dict[str, Result] = {}
    for name, file in files.items():
        with Config(file, limits, arguments.imports).locate_errors():
            result = results[name] = configured(solve, graph=graph, seed=arguments.seed)
        wrong = _wrong(result, picture)
        bound = f"{result.bound:.1f}" if math.isfinite(result.bound) else "-"
        line = f"{name:<24}{result.energy:>12.1f}{bound:>12}{wrong:>13.2f} %"
        print(f"{line}{result.seconds:>10.2f}{result.iterations:>12}", flush=True)
    draw(picture, results, truth, arguments.png)
    print(f"picture in {arguments.png}")
    return 0


def digits_picture() -> Tensor:
    """Return the embedded digits side by side, grey values in [0, 1]: (rows, columns)."""
    import torch
    from torch.nn.functional import pad

    from mrfquant.data import digits

    train = digits(Path()).train
    first = {int(label): i for i, label in reversed(list(enumerate(train.labels)))}
    rows = [torch.cat([pad(train.images[first[d], 0], [MARGIN] * 4) for d in row], 1) for row in DIGITS]
    return torch.cat(rows).double() / 255


def photograph() -> Tensor:
    """Return the middle of matplotlib's portrait of Grace Hopper (U.S. Navy, public domain), grey values in [0, 1]."""
    import torch
    from matplotlib import image
    from matplotlib.cbook import get_sample_data

    path = str(get_sample_data("grace_hopper.jpg", asfileobj=False))
    grey = torch.from_numpy(image.imread(path).copy()).double().mean(-1) / 255
    rows, columns = ((size - wanted) // 2 for size, wanted in zip(grey.shape, PHOTOGRAPH, strict=True))
    return grey[rows : rows + PHOTOGRAPH[0], columns : columns + PHOTOGRAPH[1]]


def make_picture(grey: Tensor, labels: int, noise: float, seed: int) -> Picture:
    """Return a picture as `labels` grey values, and the same with Gaussian noise."""
    import torch

    chosen = (grey * (labels - 1)).round().long()
    greys = torch.linspace(0, 1, labels, dtype=torch.float64)
    random = torch.Generator().manual_seed(seed)
    noisy = greys[chosen] + noise * torch.randn(chosen.shape, generator=random, dtype=torch.float64)
    return Picture(chosen, noisy, greys)


def make_field(picture: Picture, noise: float, smoothness: float) -> FactorGraph:
    """Return the Potts model of a picture: a variable per pixel, row by row."""
    import networkx as nx

    from mrfquant.mrf import potts

    grid = nx.grid_2d_graph(*picture.labels.shape)
    unary = -((picture.noisy.flatten()[:, None] - picture.greys) ** 2) / (2 * noise**2)
    return potts(grid, unary, smoothness)


def draw(picture: Picture, results: dict[str, Result], truth: float, path: Path) -> None:
    """The clean and the noisy picture and every solver's, with energy, errors and time."""
    from mrfquant.reports.figures import png

    panels = [(f"clean\nenergy {truth:.1f}", picture.greys[picture.labels]), ("noisy input\n", picture.noisy)]
    for name, result in results.items():
        words = name.replace("_", " ")
        text = f"{words}\nenergy {result.energy:.1f}, {_wrong(result, picture):.1f} % wrong, {result.seconds:.1f} s"
        panels.append((text, picture.greys[result.labels.cpu().view(picture.labels.shape)]))
    columns = min(5, len(panels))
    rows = math.ceil(len(panels) / columns)
    with png(path, 3.2 * columns, 2.65 * rows) as figure:
        for i, (title, image) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()


def _wrong(result: Result, picture: Picture) -> float:
    """Return the percentage of pixels with another label than the clean picture's."""
    return 100 * (result.labels.cpu() != picture.labels.flatten()).double().mean().item()


main = entry_point(parser, run)
