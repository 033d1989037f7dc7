"""The public interface is what `mrfquant` lists: all of it is there, and asking for it is what costs."""

import subprocess
import sys
from pathlib import Path

import pytest

import mrfquant


@pytest.mark.parametrize("name", mrfquant.__all__)
def test_what_is_listed_is_there(name):
    assert getattr(mrfquant, name) is not None
    assert name in dir(mrfquant)


def test_no_public_name_is_that_of_a_module():
    modules = {path.stem for path in Path(mrfquant.__file__).parent.iterdir()}
    assert not modules & set(mrfquant.__all__)


def test_nothing_else_is_public():
    with pytest.raises(AttributeError, match="attribute Nothing"):
        mrfquant.Nothing  # noqa: B018


def test_importing_it_is_cheap():
    code = "import mrfquant, sys; print([m for m in ('torch', 'numpy', 'gin', 'pytest') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_contracts_need_pytest():
    code = "import mrfquant, sys; [getattr(mrfquant, n) for n in mrfquant.__all__]; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
