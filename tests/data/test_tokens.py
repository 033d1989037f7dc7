"""Windows of a text against plain slicing, and streams against an unbroken one."""

import itertools
import random
import string
from pathlib import Path

import pytest
import torch

from mrfquant.data import Tokens, alice, byte_file, characters, shakespeare, text_file
from mrfquant.data.base import STAND_IN
from mrfquant.errors import BadInput

TEXT = "".join(random.Random(0).choices(string.ascii_lowercase, k=1000))


@pytest.fixture
def data() -> Tokens:
    return characters("some", TEXT, context=8)


def test_the_parts_are_the_text_in_order(data):
    parts = [getattr(data, name).tolist() for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [900, 50, 50]
    assert "".join(data.vocabulary[token] for part in parts for token in part) == TEXT
    assert (data.shape, data.outputs, data.size("val")) == ((8,), 26, 7)


def test_evaluation_reads_every_target_once(data):
    batches = list(data.ordered("val", batch_size=4))
    assert [tuple(inputs.shape) for inputs, _ in batches] == [(4, 8), (2, 8), (1, 1)]
    tokens = data.val.long()
    assert torch.equal(torch.cat([inputs.flatten() for inputs, _ in batches]), tokens[:-1])
    assert torch.equal(torch.cat([targets.flatten() for _, targets in batches]), tokens[1:])


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_evaluation(data, world_size):
    shares = [list(data.ordered("val", 4, rank, world_size)) for rank in range(world_size)]
    found = sorted(tuple(row) for share in shares for inputs, _ in share for row in inputs.tolist())
    assert found == sorted(tuple(row) for inputs, _ in data.ordered("val") for row in inputs.tolist())


def test_training_windows_are_slices_of_the_text_and_an_epoch_has_none_twice(data):
    stream = data.stream(10, seed=0)
    text = data.train.tolist()
    for _ in range(2):  # epochs
        starts = []
        for inputs, targets in itertools.islice(stream, stream.batches_per_epoch):
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            for window, following in zip(inputs.tolist(), targets.tolist(), strict=True):
                places = [i for i in range(len(text) - 8) if text[i : i + 9] == [*window, following[-1]]]
                assert places
                starts.append(min(places))
        assert len(set(starts)) == len(starts) == 110
        assert len({start % 8 for start in starts}) == 1  # side by side


def test_a_restored_stream_and_several_processes_see_the_same_windows(data):
    whole = list(itertools.islice(data.stream(10, seed=3), 25))
    again = data.stream(10, seed=3)
    again.load_state_dict({"iteration": 13})
    for (a, b), (c, d) in zip(whole[13:], again, strict=False):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    halves = [list(itertools.islice(data.stream(10, 3, rank, 2), 25)) for rank in range(2)]
    for (a, _), (b, _), (c, _) in zip(whole, *halves, strict=True):
        assert torch.equal(a, torch.cat([b, c]))


def test_the_text_that_comes_along_and_its_stand_in():
    data = alice()
    assert data.name == "alice"
    assert "Alice was beginning to get very tired" in "".join(data.vocabulary[t] for t in data.train[:400].tolist())
    other = shakespeare(STAND_IN, context=32)
    assert (other.name, other.outputs, other.shape, other.stand_in) == ("shakespeare", 65, (32,), True)


def test_files_of_your_own(tmp_path):
    (tmp_path / "mine.txt").write_text("häßlich? schön! " * 30, encoding="utf-8")
    data = text_file(tmp_path, "mine.txt", context=4)
    assert (data.name, data.arguments) == ("mine", {"loader": "text_file", "file": "mine.txt", "context": 4})
    assert "ß" in data.vocabulary
    raw = byte_file(tmp_path, str(tmp_path / "mine.txt"), context=4)
    assert (raw.outputs, raw.train[:3].tolist()) == (256, list("hä".encode()))
    (tmp_path / "no.txt").write_bytes(b"\xff\xfe" * 100)
    with pytest.raises(BadInput, match="no UTF-8 text"):
        text_file(tmp_path, "no.txt")
    with pytest.raises(BadInput, match=r"there is no file gone\.txt"):
        byte_file(tmp_path, "gone.txt")
    (tmp_path / "windows.txt").write_bytes(b"one\r\ntwo\r\n" * 30)
    assert "\r" not in text_file(tmp_path, "windows.txt", context=4).vocabulary


def test_a_text_of_very_many_characters():
    text = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x10000)]))
    data = characters("all", text * 4, context=8)
    assert "".join(data.vocabulary[t] for t in data.train[:1000]) == text[:1000]
    assert "".join(data.vocabulary[t] for t in data.test[-1000:]) == text[-1000:]


@pytest.mark.parametrize("read", [text_file, byte_file])
def test_a_file_without_an_end_is_not_read(read, tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadInput, match="sparse cannot be read"):
        read(tmp_path, "sparse")
    with pytest.raises(BadInput):  # the system says that it has no bytes, and would wait for the next message
        read(Path("/proc"), "kmsg")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 60}, "the val part has 50 tokens, expected more than a window of 60"),
        ({"vocabulary": ("a", "b")}, "tokens run from 0 to 25, expected 0 to 1"),
        ({"train": torch.zeros(100)}, "train is no vector of whole numbers"),
    ],
)
def test_what_is_no_text_is_refused(data, changes, message):
    arguments = {n: getattr(data, n) for n in ("name", "train", "val", "test", "vocabulary", "context")}
    with pytest.raises(BadInput, match=message):
        Tokens(**arguments | changes)
