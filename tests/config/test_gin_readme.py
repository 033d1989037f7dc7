"""gin/README.md lists every configuration with its first sentence; run as a script, this file writes that list anew."""

import itertools
from pathlib import Path

GIN = Path(__file__).parents[2] / "gin"
README = GIN / "README.md"
START = "<!-- what follows is written by tests/config/test_gin_readme.py -->\n"
NETWORKS = ["lenet300_digits", "lenet5_digits", "lenet300_mnist", "lenet5_mnist", "vgg16_cifar10", "resnet18_cifar10"]
NETWORKS += ["vgg16_cifar100", "resnet18_cifar100", "resnet18_tinyimagenet"]


def first_sentence(path):
    """Return the first sentence of the comment that a file begins with."""
    comment = itertools.takewhile(lambda line: line.startswith("# "), path.read_text().splitlines())
    text = " ".join(line.removeprefix("# ") for line in comment)
    assert text, f"{path} has to begin with a comment"
    return text.partition(". ")[0].rstrip(".") + "."


def tables():
    """The grid of the paper's cells, then a table of each folder."""
    cells = [path.stem for path in GIN.glob("*.gin")]
    methods = sorted({cell.removesuffix(f"_{n}") for cell in cells for n in NETWORKS if cell.endswith(f"_{n}")})
    lines = ["## The paper's cells", "", "| | " + " | ".join(NETWORKS) + " |", "| --- " * (len(NETWORKS) + 1) + "|"]
    for method in methods:
        there = ["x" if (GIN / f"{method}_{network}.gin").exists() else "" for network in NETWORKS]
        lines.append(f"| `{method}` | " + " | ".join(there) + " |")
    for folder in sorted(path for path in GIN.iterdir() if path.is_dir()):
        lines += ["", f"## {folder.name}/", "", "| file | what it is |", "| --- | --- |"]
        lines += [
            f"| `{p.name}` | {first_sentence(p)} |" for p in sorted(folder.iterdir()) if p.suffix in (".gin", ".space")
        ]
    return "\n".join(lines) + "\n"


def test_the_list_is_that_of_the_files():
    assert README.read_text().partition(START)[2] == tables()


def test_the_grid_has_every_cell():
    assert {path.stem for path in GIN.glob("*.gin")} == {
        f"{row.split('`')[1]}_{network}"
        for row in tables().partition("## ablations/")[0].splitlines()
        if row.startswith("| `")
        for network, mark in zip(NETWORKS, row.split("|")[2:-1], strict=True)
        if mark.strip()
    }


if __name__ == "__main__":
    README.write_text(README.read_text().partition(START)[0] + START + tables())
