"""gin's private state is touched in one file, and is there in the gin that is installed."""

import contextlib
import re
from pathlib import Path

import gin
import pytest

import mrfquant
from mrfquant.config import gin_internals
from mrfquant.config.gin_internals import isolated_gin

PACKAGE = Path(mrfquant.__file__).parent
PRIVATE = re.compile(r"\bgin(?:\.\w+)*\._\w+|\bfrom gin\b.*\bimport\b.*\b_\w+")
NAMES = sorted({*re.findall(r"gin\.config\.(_\w+)", Path(gin_internals.__file__).read_text()), *gin_internals.STATE})


def test_no_other_file_touches_what_is_private_to_gin():
    touching = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if PRIVATE.search(path.read_text())
    }
    assert touching == {"config/gin_internals.py"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_private_to_gin_is_there(name):
    assert hasattr(gin.config, name), f"this gin has no {name}: see mrfquant/config/gin_internals.py"


@gin.configurable
def part_of_this_test(size=1, colour="red"):
    return size, colour


def test_bindings_and_what_was_used_of_them():
    name = f"{__name__}.part_of_this_test"
    gin.parse_config("part_of_this_test.size = 2")
    assert gin_internals.bound() == {("", name): {"size": 2}}
    assert gin_internals.used() == {}
    part_of_this_test()
    assert gin_internals.used() == {("", name): {"size": 2, "colour": "red"}}


def test_names_that_are_registered():
    full = f"{__name__}.part_of_this_test"
    assert gin_internals.registered_as("part_of_this_test") == [full]
    assert full in gin_internals.registered()
    assert gin_internals.registered_as("nothing_of_the_kind") == []


def test_included_files_are_looked_for_where_it_was_said(tmp_path):
    (tmp_path / "small.gin").write_text("part_of_this_test.size = 3")
    with isolated_gin():
        gin_internals.set_search_folders([str(tmp_path)])
        assert gin_internals.search_folders() == [str(tmp_path)]
        gin.parse_config("include 'small.gin'")
        assert part_of_this_test() == (3, "red")
    assert str(tmp_path) not in gin_internals.search_folders()


@pytest.mark.parametrize("locked", [False, True])
def test_gin_is_afterwards_as_it_was(locked):
    gin.parse_config("part_of_this_test.size = 4")
    part_of_this_test()
    if locked:
        gin.finalize()
    before, used = gin.config_str(), gin.operative_config_str()
    with contextlib.suppress(KeyError), isolated_gin():
        gin.clear_config()
        gin.parse_config("part_of_this_test.colour = 'blue'\nimport json")
        assert part_of_this_test() == (1, "blue")
        raise KeyError
    assert (gin.config_str(), gin.operative_config_str()) == (before, used)
    assert gin.config_is_locked() == locked
    assert part_of_this_test() == (4, "red")
