"""The paper's tables, and ours of networks that it does not have, as cells.

A cell is a configuration, with the accuracy that the paper reports.

Figures: Ajanthan, Dokania, Hartley, Torr, "Proximal Mean-field for Neural Network Quantization", ICCV 2019; the column
PMF retuned is from the authors' later settings in their repository.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrfquant.metric import LOSS, TOP1, Metric
from mrfquant.text import markdown

COLUMNS = ("REF", "BC", "PQ", "PICM", "PGD", "PMF", "PMF retuned")
RESULTS = {
    ("mnist", "lenet300"): (98.55, 98.05, 98.13, 98.18, 98.21, 98.24, None),
    ("mnist", "lenet5"): (99.39, 99.30, 99.27, 99.31, 99.28, 99.44, None),
    ("cifar10", "vgg16"): (93.01, 86.40, 90.11, 88.96, 88.48, 90.51, 91.40),
    ("cifar10", "resnet18"): (94.64, 91.60, 92.32, 92.02, 92.60, 92.73, 93.24),
    ("cifar100", "vgg16"): (70.33, 43.70, 55.10, 45.65, 57.83, 61.52, 64.71),
    ("cifar100", "resnet18"): (73.85, 69.93, 68.35, 70.85, 70.60, 71.85, 71.56),
    ("tinyimagenet", "resnet18"): (56.41, 49.33, 49.97, 49.66, 49.60, 51.00, 51.52),
}
NO_AUXILIARY = {
    ("mnist", "lenet300"): 96.74,
    ("mnist", "lenet5"): 98.78,
    ("cifar10", "vgg16"): 80.18,
    ("cifar10", "resnet18"): 87.36,
}
TWO_BIT = {("mnist", "lenet300"): None, ("cifar10", "resnet18"): 92.88, ("cifar10", "vgg16"): 91.27}
GPT = {"REF": "ref", "STE ternary": "ste", "PMF ternary": "pmf", "MD ternary": "md", "PMF binary": "pmf_binary"}
RESNET20 = {  # fine-tuned from public weights
    "REF": "ref",
    "STE": "ste",
    "PQ": "pq",
    "PGD": "pgd",
    "PMF": "pmf",
    "MD": "md",
    "PARQ": "parq",
    "STE ternary": "ste_ternary",
    "PMF ternary": "pmf_ternary",
    "PARQ ternary": "parq_ternary",
}
RHOS = (1.01, 1.02, 1.05, 1.1, 1.2)  # the range that the paper cross-validates
SCALES = ("paper", "full", "medium")  # the paper's settings; 20 epochs at full size; those at a quarter of the width


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a configuration and settings, its accuracy in the paper, and whether it needs weights.

    Attributes:
        config: name of the configuration, also of the run's folder.
        folder: where in gin/ it is; '' for the paper's cells.
    """

    dataset: str
    model: str
    column: str
    config: str
    settings: tuple[str, ...] = ()
    paper: float | None = None
    metric: Metric = TOP1
    trained: bool = False
    folder: str = ""

    def file(self, scale: str) -> str:
        """Return the path of the configuration within gin/ at a scale, one of `SCALES`."""
        return f"{self.folder if scale == 'paper' else scale}/{self.config}.gin".removeprefix("/")


def _cell(
    row: tuple[str, str], column: str, prefix: str, paper: float | None, *settings: str, folder: str = ""
) -> Cell:
    dataset, model = row
    return Cell(dataset, model, column, f"{prefix}_{model}_{dataset}", settings, paper, folder=folder)


def _results() -> list[Cell]:
    cells = []
    for row, figures in RESULTS.items():
        for column, paper in zip(COLUMNS, figures, strict=True):
            if column != "PMF retuned" or paper is not None:
                cells.append(_cell(row, column, column.lower().replace(" ", "_"), paper))
        cells.append(_cell(row, "MD", "md", None))
    published = _cell(("mnist", "lenet300"), "PQ as published", "pq_published", None, folder="ablations")
    return [*cells, published]


TABLES: dict[str, list[Cell]] = {
    "results": _results(),
    "no-auxiliary": [
        cell
        for row, paper in NO_AUXILIARY.items()
        for cell in (
            _cell(row, "PMF without auxiliary", "pmf_no_auxiliary", paper),
            _cell(row, "PMF", "pmf", RESULTS[row][COLUMNS.index("PMF")]),
        )
    ],
    "best": [
        _cell(row, "best", "best", None, folder="best")
        for row in (("mnist", "lenet300"), ("mnist", "lenet5"), ("cifar10", "resnet18"))  # the last at medium scale
    ],
    "gpt": [
        Cell("shakespeare", "gpt", column, f"{prefix}_gpt_shakespeare", metric=LOSS, folder="language")
        for column, prefix in GPT.items()
    ],
    "resnet20": [
        *(
            Cell("cifar10", "resnet20", name, f"{prefix}_resnet20_cifar10", trained=True, folder="cifar10")
            for name, prefix in RESNET20.items()
        ),
        Cell(  # the same settings on a deeper one
            "cifar10",
            "resnet44",
            "PMF ternary",
            "pmf_ternary_resnet20_cifar10",
            ("CifarResNet.depth = 44",),
            trained=True,
            folder="cifar10",
        ),
    ],
    "levels": [
        _cell(("mnist", "lenet300"), column, "pmf", None, *settings)
        for column, settings in (("PMF", ()), ("PMF ternary", ("Labelling.levels = [-1, 0, 1]",)))
    ],
    "two-bit": [_cell(row, "PMF 2-bit", "pmf_2bit", paper) for row, paper in TWO_BIT.items()],
    "rho": [
        _cell(row, f"rho {rho}", "pmf", None, f"Geometric.rho = {rho}")
        for row in (("mnist", "lenet300"), ("cifar10", "resnet18"))
        for rho in RHOS
    ],
}


def render(cells: Sequence[Cell], accuracies: Mapping[Cell, Sequence[float]]) -> str:
    """Return a Markdown table: ours (mean ± deviation over seeds), the paper's, the difference; a dash without runs."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys((cell.dataset, cell.model) for cell in cells))
    lines = [["data, network", *columns]]
    for row in rows:
        found = {cell.column: cell for cell in cells if (cell.dataset, cell.model) == row}
        lines.append([f"{row[0]}, {row[1]}", *(_text(found.get(column), accuracies) for column in columns)])
    return markdown(lines)


def _text(cell: Cell | None, accuracies: Mapping[Cell, Sequence[float]]) -> str:
    ours = accuracies.get(cell, ()) if cell else ()
    paper = None if cell is None else cell.paper
    if not ours:
        return "" if paper is None else f"- (paper {paper:.2f})"
    text = spread(ours, TOP1 if cell is None else cell.metric)
    notes = [f"{len(ours)} seeds"] if len(ours) > 1 else []
    if paper is not None:
        notes.append(f"paper {paper:.2f}, {statistics.mean(ours) - paper:+.2f}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def spread(figures: Sequence[float], metric: Metric = TOP1) -> str:
    """Return the mean of some figures, with their sample standard deviation if there are several."""
    mean = metric.number(statistics.mean(figures))
    return f"{mean} ± {metric.number(statistics.stdev(figures))}" if len(figures) > 1 else mean
