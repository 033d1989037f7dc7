"""Tables of the guides show what the committed runs have."""

import statistics
from pathlib import Path

import pytest

from mrfquant.reproduction import TABLES, Campaign, paper

ROOT = Path(__file__).parents[2]
BASELINES = ROOT / "runs" / "baselines"


def table(guide, first_cell, containing):
    """The rows of the table of a guide whose header begins so and has such a column: {name: {column: text}}."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in guide.splitlines() if line.startswith("|")
    ]
    start = next(i for i, row in enumerate(rows) if row[0] == first_cell and containing in row)
    end = next((i for i in range(start + 2, len(rows)) if len(rows[i]) != len(rows[start]) or rows[i][0] == ""), None)
    return {row[0]: dict(zip(rows[start], row, strict=True)) for row in rows[start + 2 : end]}


def runs(name, scale="paper", model=None):
    """Test accuracies of the committed runs of a table, by column."""
    cells = [cell for cell in TABLES[name] if model in (None, cell.model)]
    return {cell.column: found for cell, found in Campaign(cells, 1, scale, BASELINES).accuracies().items()}


def shown(accuracies):
    mean = f"{statistics.mean(accuracies):.2f}"
    return f"{mean} ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else mean


def compare(row, found, columns):
    checked = {column: shown(found[column]) for column in columns if column in found}
    assert checked
    assert {column: row[column].replace("*", "") for column in checked} == checked


def test_the_papers_table_is_what_the_command_prints():
    """When it fails because runs were added: put what `mrfquant reproduce paper` prints into docs/results.md."""
    assert paper.table(paper.overview(BASELINES)) in (ROOT / "docs" / "results.md").read_text()


def test_the_other_figures_of_lenet_300():
    text = (ROOT / "docs" / "results.md").read_text()
    assert f"{shown(runs('results', model='lenet300')['MD'])} by MD" in text
    assert f"{shown(runs('no-auxiliary', model='lenet300')['PMF without auxiliary'])} by PMF without" in text


@pytest.mark.parametrize(("row", "model"), [("ResNet-18", "resnet18"), ("VGG-16", "vgg16")])
def test_the_table_of_a_quarter_of_the_width(row, model):
    rows = table((ROOT / "docs" / "cifar10.md").read_text(), "", "best recipe")
    found = {column: value for column, value in runs("results", "medium", model).items() if column != "PICM"}
    compare(rows[f"{row}, a quarter of the width"], found, ["REF", "BC", "PQ", "PGD", "PMF"])


def test_the_table_of_public_weights():
    rows = table((ROOT / "docs" / "cifar10.md").read_text(), "", "seeds")
    found = runs("resnet20", model="resnet20")
    shown_rows = {name.removesuffix(", float"): row["test"] for name, row in rows.items()}
    assert {name: shown_rows[name] for name in found} == {name: shown(values) for name, values in found.items()}
