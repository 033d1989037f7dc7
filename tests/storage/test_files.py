"""Writing in one piece: links are followed, pipes are written to, and a failure leaves what was there."""

import os
import threading
import tracemalloc

import pytest

from mrfquant.commands.parser import writable
from mrfquant.storage.files import atomic, read_bytes, write_text


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(timeout=10)
    assert read == ["through"]
    assert pipe.is_fifo()


def test_a_pipe_may_be_named_as_an_output_and_is_not_opened_yet(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    assert writable(str(pipe)) == pipe  # opened, it would wait for a reader


def test_a_failure_leaves_the_former_content_and_nothing_else(tmp_path):
    write_text(tmp_path / "file", "old")

    def fail():
        with atomic(tmp_path / "file") as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_reading_takes_as_much_memory_as_there_are_bytes(tmp_path):
    (tmp_path / "small").write_bytes(b"few")
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "small") == b"few"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="more than"):
        read_bytes(tmp_path / "sparse")
