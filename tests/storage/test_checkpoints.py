"""Checkpoints: the last two states are kept, what cannot be read is never deleted, what is lost is said."""

import errno
import io
import os
import shutil
import zipfile
from contextlib import contextmanager
from decimal import Decimal

import pytest
import torch

from mrfquant.errors import BadInput, RunFailed
from mrfquant.storage.checkpoints import Checkpoints, Damaged, check_archive


def kept(folder):
    return sorted(path.name for path in folder.glob("step-*"))


def test_the_last_two_states_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for iteration in (1, 2, 3):
        checkpoints.save(iteration, {}, None)
    assert kept(tmp_path) == ["step-00000002.pt", "step-00000003.pt"]


def test_a_state_saved_again_leaves_the_one_before_it(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for iteration in (1, 2, 3, 3):
        checkpoints.save(iteration, {}, None)
    assert kept(tmp_path) == ["step-00000002.pt", "step-00000003.pt"]


def saved(folder, *steps):
    """Checkpoints with a best model for each step."""
    checkpoints = Checkpoints(folder / "checkpoints")
    for step, best in steps:
        checkpoints.save_best(best, {"model": {"w": torch.ones(100)}})
        checkpoints.save(step, {"w": torch.zeros(100), "best": {"iteration": best}}, best)
    return Checkpoints(folder / "checkpoints")


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_state_is_set_aside_and_never_deleted(tmp_path):
    checkpoints, said = saved(tmp_path, (1, 1), (2, 2)), []
    damage(path := checkpoints.folder / "step-00000002.pt")
    content = path.read_bytes()
    assert checkpoints.newest(said.append)["best_iteration"] == 1
    assert path.with_name("step-00000002.pt.damaged").read_bytes() == content
    assert "set aside as step-00000002.pt.damaged" in said[0]


def test_a_run_without_a_whole_state_is_refused_each_time(tmp_path):
    checkpoints = saved(tmp_path, (1, 1), (2, 2))
    for path in checkpoints.folder.glob("step-*"):
        damage(path)
    for _ in range(2):
        with pytest.raises(BadInput, match="none of its checkpoints is whole"):
            checkpoints.newest(print)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), MemoryError("too little memory")])
def test_a_state_that_cannot_be_loaded_now_stays_as_it_is(tmp_path, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    checkpoints = saved(tmp_path, (1, 1), (2, 2))
    before = sorted(checkpoints.folder.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fail)
        with pytest.raises(BadInput, match=r"step-00000002.pt is whole and cannot be loaded: .*left as it is"):
            checkpoints.newest(print)
    assert sorted(checkpoints.folder.iterdir()) == before
    assert checkpoints.newest(print)["best_iteration"] == 2


def test_a_state_that_could_not_be_loaded_again_is_refused_when_it_is_saved(tmp_path):
    checkpoints = saved(tmp_path, (1, 1))
    with pytest.raises(RunFailed, match=r"loaded again \(it holds decimal.Decimal"):
        checkpoints.save(2, {"plug-in": Decimal(1)}, 1)
    with pytest.raises(RunFailed, match="loaded again"):
        checkpoints.save(2, {"plug-in": lambda: None}, 1)
    assert kept(checkpoints.folder) == ["step-00000001.pt"]


def test_a_damaged_best_is_noticed_and_the_state_before_with_its_own_is_taken(tmp_path):
    checkpoints, said = saved(tmp_path, (1, 1), (2, 2)), []
    damage(checkpoints.folder / "best-00000002.pt")
    assert checkpoints.newest(said.append)["best_iteration"] == 1
    assert "set aside as best-00000002.pt.damaged" in said[0]


def test_without_any_best_the_newest_state_is_taken_and_it_is_said(tmp_path):
    checkpoints, said = saved(tmp_path, (1, 1), (2, 1)), []
    (checkpoints.folder / "best-00000001.pt").unlink()
    state = checkpoints.newest(said.append)
    assert (state["best"], state["best_iteration"]) == (None, None)
    assert "going on from step-00000002.pt without it" in said[-1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_in_a_sentence_and_promises_nothing_that_is_not_there(tmp_path, monkeypatch, code):
    @contextmanager
    def full(path):
        class Full(io.BytesIO):
            def write(self, data):
                raise OSError(code, os.strerror(code))

        yield Full()

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr("mrfquant.storage.checkpoints.atomic", full)
        with pytest.raises(RunFailed, match=f"{os.strerror(code)}; there is none before it"):
            checkpoints.save(1, {"w": torch.ones(10)}, None)
    checkpoints.save(1, {}, None)
    monkeypatch.setattr("mrfquant.storage.checkpoints.atomic", full)
    with pytest.raises(RunFailed, match=f"{os.strerror(code)}; the one before it is kept"):
        checkpoints.save(2, {"w": torch.ones(10)}, None)


def test_a_folder_that_is_gone_is_told_and_not_made_again(tmp_path):
    (tmp_path / "run").mkdir()
    checkpoints = saved(tmp_path / "run", (1, 1))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(RunFailed, match="run is gone"):
        checkpoints.save(2, {}, None)
    assert not (tmp_path / "run").exists()


def test_a_compressed_archive_is_not_expanded(tmp_path):
    with zipfile.ZipFile(tmp_path / "step-00000001.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**6))
    with pytest.raises(Damaged, match="it is compressed"):
        check_archive(tmp_path / "step-00000001.pt")
