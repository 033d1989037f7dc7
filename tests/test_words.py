"""Docstrings begin with a subject or a verb; ruff checks the rest of their form (D205, D401)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mrfquant"
RIDDLES = ("Of ", "That ", "Those ", "The same", "Likewise", "What ")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def riddles(source):
    """The first lines of docstrings that begin with one of the words."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    texts = [ast.get_docstring(node) or "" for node in nodes]
    return [text.splitlines()[0] for text in texts if text.startswith(RIDDLES)]


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=lambda p: p.name)
def test_no_docstring_begins_with_a_riddle(folder):
    assert {path.name: found for path in folder.glob("*.py") if (found := riddles(path.read_text()))} == {}


def test_riddles_are_found():
    source = 'def f():\n    """Of a weight."""\n\n\nclass A:\n    """What it holds."""'
    assert riddles(source) == ["Of a weight.", "What it holds."]
    assert riddles('def f():\n    """Return the weight."""') == []
