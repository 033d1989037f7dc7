"""Checkpoints: the last two states are kept, whatever the order they are saved in."""

from mrfquant.storage.checkpoints import Checkpoints


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
