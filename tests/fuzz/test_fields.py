"""UAI files: models, evidence and results."""

import pytest
import torch

from mrfquant.mrf import FactorGraph, uai


def field(path):
    uai.write_model(path, FactorGraph([2, 3], [([0, 1], torch.rand(2, 3)), ([1], torch.rand(3))]))


READERS = {  # name: the file, how a whole one is made, how it is read
    "uai": ("x.uai", field, uai.read_model),
    "evidence": ("x.evid", lambda p: p.write_text("2 0 1 1 2\n"), uai.read_evidence),
    "mar": ("x.mar", lambda p: uai.write_mar(p, [[0.5, 0.5], [0.1, 0.9]]), uai.read_mar),
    "map": ("x.map", lambda p: uai.write_map(p, [0, 2, 1]), uai.read_map),
    "pr": ("x.pr", lambda p: uai.write_pr(p, 3.5), uai.read_pr),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_field_gives_an_answer_or_a_sentence(name, fuzz, tmp_path):
    file, make, read = READERS[name]
    make(tmp_path / file)
    fuzz(name, tmp_path / file, read)
