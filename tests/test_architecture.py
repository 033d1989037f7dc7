"""The rooms of the package import what docs/reference/rooms.md allows them, and nothing imports itself in a circle."""

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mrfquant

PACKAGE = Path(mrfquant.__file__).parent
TABLE = (PACKAGE.parent / "docs" / "reference" / "rooms.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| .*? \| ?(.*?) ?\|$", TABLE, re.MULTILINE)
ALLOWED = {room: set(filter(None, re.split(r",\s*", allowed))) for room, allowed in ROWS}
MODULES = {
    ".".join(["mrfquant", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(source):
    """The modules of the package that a source file imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("mrfquant."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mrfquant":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def room(module):
    return module.split(".")[1] if "." in module else "mrfquant"


def broken_arrows(sources):
    """'module imports module' for everything that the table does not allow."""
    return [
        f"{module} imports {other}"
        for module, source in sources.items()
        for other in imports(source)
        if room(other) not in ("mrfquant", room(module)) and room(other) not in ALLOWED.get(room(module), ())
    ]


SOURCES = {module: path.read_text() for module, path in MODULES.items() if room(module) not in ("mrfquant", "__main__")}


def test_every_room_is_in_the_table():
    assert {room(module) for module in SOURCES} == set(ALLOWED)


def test_rooms_import_what_they_may():
    assert broken_arrows(SOURCES) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("mrfquant.packing.bits", "from mrfquant.training import Trainer"),
        ("mrfquant.labelling.block", "def f():\n    import mrfquant.inference.base"),
        ("mrfquant.training.collectors", "from mrfquant.commands import parser"),
    ],
)
def test_a_broken_arrow_is_found(module, line):
    assert broken_arrows({**SOURCES, module: f"{SOURCES[module]}\n{line}\n"})


def test_every_allowed_arrow_between_small_rooms_is_needed():
    """A table that allows more than is used would hide what it is for; rooms that may know nearly all are left out."""
    used = defaultdict(set)
    for module, source in SOURCES.items():
        used[room(module)] |= {room(other) for other in imports(source)}
    for name, allowed in ALLOWED.items():
        if name not in ("benchmarks", "testing", "commands"):
            assert allowed <= used[name] | {"errors"}, name


def test_no_import_goes_in_a_circle():
    graph = {module: {other for other in imports(source) if other != module} for module, source in SOURCES.items()}
    for module in list(graph):  # a package is its __init__: importing a module of it runs that first
        graph[module] = {other for other in graph[module] if not module.startswith(f"{other}.")}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
