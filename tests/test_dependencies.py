"""What the package imports is what setup.py asks for: always, or by the name of an extra."""

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools

from mrfquant.config.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mrfquant"
PACKAGES = {"gin": "gin-config", "PIL": "pillow"}  # modules that have another name than their package
PEERS = {
    "jax",
    "pgmax",
    "torchao",
    "entmax",
}  # that `mrfquant bench --peers` compares with where they are
# Modules that the others import within functions only, and the extra that they need.
OPTIONAL = {
    "reports/figures.py": "reports",
    "benchmarks/picture.py": "reports",
    "kernels/descent.py": "fast",
    "kernels/forward_backward.py": "fast",
    "kernels/jit.py": "fast",
    "kernels/mixing.py": "fast",
    "kernels/runs.py": "fast",
    "kernels/simplex.py": "fast",
    "kernels/steps.py": "fast",
    "kernels/trees.py": "fast",
    "kernels/viterbi.py": "fast",
    "language/transformers_layers.py": "language",
}
FILES = {
    name: path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not (name := path.relative_to(PACKAGE).as_posix()).startswith("testing/")  # needs pytest, and says so
}


@pytest.fixture(scope="module")
def asked() -> dict[str, set[str]]:
    """The packages of each extra, and under '' those that are always installed; names in small letters, with '-'."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(setuptools, "setup", lambda **words: given.update(words))
        runpy.run_path("setup.py")
    groups = {"": given["install_requires"], **given["extras_require"]}
    return {extra: {package(re.match(r"[\w.-]+", line)[0]) for line in lines} for extra, lines in groups.items()}


def package(module: str) -> str:
    """The package that a module belongs to."""
    name = module.partition(".")[0]
    return PACKAGES.get(name, name).lower().replace("_", "-")


def imports(node: ast.AST, within_functions: bool) -> Iterator[str]:
    """Modules that are imported, those for type checkers left out: 'torch.nn', 'mrfquant.data.digits'."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif within_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(child, within_functions)


def imported(name: str, within_functions: bool) -> set[str]:
    """The packages of others that a file imports."""
    found = {module.partition(".")[0] for module in imports(ast.parse(FILES[name].read_text()), within_functions)}
    return {package(module) for module in found - sys.stdlib_module_names - {"mrfquant"}}


def test_what_a_module_imports_is_installed(asked):
    extra = {name: asked.get(OPTIONAL.get(name), set()) for name in FILES}
    beyond = {name: imported(name, False) - asked[""] - extra[name] for name in FILES}
    assert not {name: packages for name, packages in beyond.items() if packages}


def test_what_a_function_imports_can_be_installed(asked):
    peers = {name: PEERS if name.startswith("benchmarks/") else set() for name in FILES}
    extras = asked["all"] | asked["language"]
    beyond = {name: imported(name, True) - asked[""] - extras - peers[name] for name in FILES}
    assert not {name: packages for name, packages in beyond.items() if packages}


def test_modules_that_need_an_extra_are_imported_within_functions():
    optional = tuple(f"mrfquant.{path.removesuffix('.py').replace('/', '.')}" for path in OPTIONAL)
    for name in FILES.keys() - OPTIONAL.keys():
        assert not [m for m in imports(ast.parse(FILES[name].read_text()), False) if m.startswith(optional)], name


def test_nothing_is_asked_for_in_vain(asked):
    used = set().union(*(imported(name, True) for name in FILES))
    assert asked[""] - used == {"torchvision"}  # which `import_torchvision` imports
    assert asked["all"] - used == {"tensorboard"}  # which torch.utils needs


def test_the_extras_that_commands_name_bring_what_they_look_for(asked):
    for extra, modules in EXTRAS.items():
        assert {package(module) for module in modules} <= asked[extra]


def test_what_make_installs_is_pinned(asked):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {package(line.partition("==")[0]) for line in lines if "==" in line}
    assert asked[""] | asked["test"] <= pinned
