"""gin files, --set and search spaces."""

import pytest

import mrfquant.training.experiment  # noqa: F401 - the names that configurations have
from mrfquant.config.gin_files import CONFIGS, Config
from mrfquant.config.search_space import read_space


def gin_file(path):
    path.write_bytes((CONFIGS / "pmf_lenet300_digits.gin").read_bytes())


def space(path):
    path.write_bytes((CONFIGS / "spaces" / "pmf.space").read_bytes())


READERS = {  # name: the file, how a whole one is made, how it is read
    "gin": ("my.gin", gin_file, lambda path: Config(path, trusted=False)),
    "set": (
        "set",
        lambda p: p.write_text("Labelling.levels = [-1, 0.5, 'x', @LeNet300()]"),
        lambda path: Config(None, [path.read_bytes().decode("utf-8", "replace")]),
    ),
    "space": ("my.space", space, read_space),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_text_of_settings_gives_an_answer_or_a_sentence(name, fuzz, tmp_path):
    file, make, read = READERS[name]
    make(tmp_path / file)
    fuzz(name, tmp_path / file, read)
