"""The command: what it writes, what it says, and how it refuses."""

import contextlib
import functools
import json
import operator
import random
import resource
import shutil
from urllib.error import URLError

import pytest
import torch

from mrfquant.commands import eval as evaluation
from mrfquant.commands import pack
from mrfquant.commands.run import main
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput
from mrfquant.storage.run_folder import RunFolder

REF = "gin/ref_lenet300_digits.gin"
SHORT = [
    "--set",
    "Trainer.iterations = 60",
    "--set",
    "Trainer.eval_interval = 20",
    "--set",
    "Trainer.log_interval = 10",
]


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the command; gives its exit status and what it printed on the two streams."""

    def run(*arguments):
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def finished(run, tmp_path):
    """A short finished run."""
    status, _, _ = run("--gin", REF, *SHORT, "--out", tmp_path / "finished")
    assert status == 0
    return tmp_path / "finished"


def refused(outcome, *words):
    """The outcome is exit status 2, one sentence with these words on standard error, no traceback."""
    status, _, err = outcome
    assert status == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def unfinish(folder):
    """Make a finished run look as if it had been killed after its last checkpoint."""
    (folder / "summary.json").unlink()


def test_a_run_writes_everything_it_promises(run, tmp_path):
    status, out, err = run("--gin", REF, *SHORT, "--seed", 3, "--out", tmp_path / "run")
    folder = tmp_path / "run"
    assert (status, err) == (0, "")
    assert {f.name for f in folder.iterdir()} == {
        *(
            "config.gin",
            "operative.gin",
            "identity.json",
            "env.json",
            "metrics.jsonl",
            "summary.json",
            "log.txt",
            "checkpoints",
        ),
        ".lock",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["method"], summary["model"], summary["dataset"]) == ("REF", "lenet300", "digits")
    assert (summary["seed"], summary["iterations"], summary["parameters"]) == (3, 60, 266_610)
    assert summary["best_val_top1"] > 90
    assert summary["test_top5"] >= summary["test_top1"] > 90
    assert summary["seconds"] > 0
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["iteration"] for r in records] == [10, 20, 30, 40, 50, 60]
    assert [r["iteration"] for r in records if "val_top1" in r] == [20, 40, 60]
    assert "Experiment.seed = 3" in (folder / "config.gin").read_text()
    assert "Trainer.precision = 'float32'" in (folder / "operative.gin").read_text()
    session = json.loads((folder / "env.json").read_text())["sessions"][0]
    assert session["packages"]["torch"] == torch.__version__
    assert f"test top-1   {summary['test_top1']:.2f} %" in out
    assert out == (folder / "log.txt").read_text()


def test_the_runs_own_config_runs_again_to_the_same_result(run, finished, tmp_path):
    assert run("--gin", finished / "config.gin", "--out", tmp_path / "again")[0] == 0
    first, second = (json.loads((f / "summary.json").read_text()) for f in (finished, tmp_path / "again"))
    timings = {"seconds", "steps_per_second"}
    assert {k: v for k, v in first.items() if k not in timings} == {k: v for k, v in second.items() if k not in timings}


def test_the_tested_model_is_the_best_on_validation(finished):
    summary = json.loads((finished / "summary.json").read_text())
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    validated = {r["iteration"]: r["val_top1"] for r in records if "val_top1" in r}
    assert summary["best_val_top1"] == max(validated.values())
    assert validated[summary["best_iteration"]] == summary["best_val_top1"]


def test_a_quantized_run_ends_on_its_levels_and_reports_its_labels(run, tmp_path):
    status, out, _ = run("--gin", "gin/pmf_lenet300_digits.gin", *SHORT, "--out", tmp_path / "run")
    assert status == 0
    assert out.startswith("PMF  1-bit lenet300 on digits")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["labelled"], summary["bits"]) == (summary["parameters"], 1)
    best = tmp_path / "run" / "checkpoints" / f"best-{summary['best_iteration']:08d}.pt"
    for name, tensor in torch.load(best, weights_only=True)["model"].items():
        if "weight" in name or "bias" in name:
            assert set(tensor.unique().tolist()) == {-1.0, 1.0}
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"beta", "entropy", "decided", "flips", "relaxed_val_top1", "val_top1"} <= record.keys()


def test_per_layer_entropies_are_recorded_on_request(run, tmp_path):
    extra = ["--set", "Trainer.per_layer = True"]
    assert run("--gin", "gin/pmf_lenet300_digits.gin", *SHORT, *extra, "--out", tmp_path / "run")[0] == 0
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < record["entropy/layers.1.weight"] <= 1


def test_smoke_marks_stand_in_data_everywhere(run, tmp_path):
    status, out, _ = run("--gin", "gin/ref_lenet300_mnist.gin", "--smoke", "--out", tmp_path / "smoke")
    assert status == 0
    assert out.startswith("STAND-IN DATA")
    summary = json.loads((tmp_path / "smoke" / "summary.json").read_text())
    assert (summary["stand_in"], summary["iterations"], summary["dataset"]) == (True, 20, "mnist")
    assert "(STAND-IN DATA)" in out.splitlines()[-4]


def test_resuming_a_finished_run_says_so(run, finished):
    status, out, _ = run("--resume", finished)
    assert status == 0
    assert "is finished" in out


def test_a_truncated_checkpoint_falls_back_to_the_one_before(run, finished):
    whole = json.loads((finished / "summary.json").read_text())
    unfinish(finished)
    newest = finished / "checkpoints" / "step-00000060.pt"
    newest.write_bytes(newest.read_bytes()[:100_000])
    status, out, _ = run("--resume", finished)
    assert status == 0
    assert "step-00000060.pt is truncated or damaged" in out
    assert "going on from iteration 40" in out
    assert json.loads((finished / "summary.json").read_text())["test_top1"] == whole["test_top1"]


def test_killed_after_its_last_checkpoint_a_run_is_finished_by_resuming(run, finished):
    whole = json.loads((finished / "summary.json").read_text())
    unfinish(finished)
    assert run("--resume", finished)[0] == 0
    again = json.loads((finished / "summary.json").read_text())
    assert again["test_top1"] == whole["test_top1"]
    assert again["seconds"] == pytest.approx(whole["seconds"], rel=0.5)  # the time before counts


@pytest.mark.parametrize("damage", ["{bad", "{}", "5"])
def test_a_damaged_summary_is_told(run, finished, damage):
    (finished / "summary.json").write_text(damage)
    refused(run("--resume", finished), "summary.json is damaged")


def test_damaged_notes_and_records_do_not_stop_a_resume(run, finished):
    unfinish(finished)
    (finished / "env.json").write_text("{bad")
    lines = (finished / "metrics.jsonl").read_text().splitlines()
    (finished / "metrics.jsonl").write_text("\n".join([*lines[:2], "5", "{bad", *lines[2:], '{"iter']))
    assert run("--resume", finished)[0] == 0
    assert (finished / "metrics.jsonl").read_text().splitlines() == lines


def test_a_flipped_byte_in_a_checkpoint_is_noticed(run, finished):
    unfinish(finished)
    newest = finished / "checkpoints" / "step-00000060.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert "truncated or damaged" in run("--resume", finished)[1]


def test_no_whole_checkpoint_left_is_refused(run, finished):
    unfinish(finished)
    for path in (finished / "checkpoints").glob("step-*"):
        path.write_bytes(b"")
    refused(run("--resume", finished), "cannot be resumed", "none of its checkpoints is whole")


def test_a_run_killed_before_its_first_checkpoint_starts_again(run, finished):
    unfinish(finished)
    for path in (finished / "checkpoints").iterdir():
        path.unlink()
    status, out, _ = run("--resume", finished)
    assert status == 0
    assert "starting from the beginning" in out


def test_a_checkpoint_that_would_execute_code_is_refused(run, finished, tmp_path):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "attacked"), "w"))

    unfinish(finished)
    for path in (finished / "checkpoints").glob("step-*"):
        torch.save({"iteration": Attack()}, path)
    refused(run("--resume", finished), "is whole and cannot be loaded: it holds io.open")
    assert not (tmp_path / "attacked").exists()


def test_resume_of_what_is_not_a_run_is_refused(run, tmp_path):
    refused(run("--resume", tmp_path), "is not a run, it has no config.gin")
    refused(run("--resume", tmp_path / "nowhere"), "is not a run, it is not there")


def test_two_processes_do_not_work_on_one_run(run, finished):
    unfinish(finished)
    with RunFolder(finished).owned():
        refused(run("--resume", finished), f"another process is at work on {finished}")
    assert run("--resume", finished)[0] == 0


def test_a_config_changed_to_another_network_is_told_when_resumed(run, finished):
    unfinish(finished)
    config = finished / "config.gin"
    text = config.read_text()
    config.write_text(text.replace("@LeNet300", "@LeNet5"))
    words = "Experiment.model = @LeNet5 (was @LeNet300)"
    refused(run("--resume", finished), "cannot be resumed, its config.gin was changed", words)
    config.write_text(text)
    assert run("--resume", finished)[0] == 0


def test_a_team_of_which_half_is_missing_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(run("--gin", REF, "--out", tmp_path / "run"), "WORLD_SIZE = 2", "torchrun")


def test_a_command_that_is_repeated_goes_on_with_its_run(run, tmp_path):
    folder = tmp_path / "run"
    command = ["--gin", REF, *SHORT, "--out", folder, "--continue"]
    assert run(*command)[0] == 0
    unfinish(folder)
    status, out, _ = run(*command)
    assert status == 0
    assert "going on from iteration" in out
    assert run(*command)[0] == 0  # nothing is left to do
    assert "give its --out" in run("--gin", REF, "--continue")[2]


def test_resume_does_not_take_other_settings(run, finished):
    status, _, err = run("--resume", finished, "--seed", "1")
    assert status == 2
    assert "--resume continues a run as it was configured" in err


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("Trainer.iterations = 0", ["Trainer.iterations = 0", "a whole number above 0", "--set"]),
        ("Trainer.batch_size = -5", ["Trainer.batch_size = -5", "a whole number above 0"]),
        ("Trainer.batch_size = 5000", ["batch", "5000", "1197"]),
        ("Experiment.seed = -1", ["Experiment.seed = -1", "a whole number from 0", "--set"]),
        ("Trainer.iterations = 'many'", ["Trainer.iterations = 'many'", "a whole number above 0"]),
        ("Trainer.speed = 9", ["doesn't have a parameter named 'speed'"]),
        ("SGD.lr = 0.1", ["SGD.lr", "nothing in this run reads it"]),
        ("Adam.lr = -1.0", ["the optimizer Adam cannot be built", "-1.0", "--set 'Adam.lr = -1.0')"]),
        ("Labelling.levels = [1]", ["Labelling.levels = [1.0]", "two or more different finite numbers", "--set"]),
        ("Experiment.model = @Adam", ["Experiment.model = @Adam, expected a network, as @LeNet300 (bound at --set"]),
        ("Experiment.model = @digits", ["Experiment.model = @digits, expected a network"]),
        ("Experiment.dataset = @LeNet300", ["Experiment.dataset = @LeNet300, expected a data set, as @digits"]),
        ("Experiment.optimizer = @Geometric", ["Experiment.optimizer = @Geometric, expected an optimizer, as @Adam"]),
        ("Experiment.inference = @Adam", ["Experiment.inference = @Adam, expected a solver, as @ProximalMeanField"]),
        ("Experiment.model = @LeNet300()", ["name @LeNet300 without parentheses"]),
        ("Trainer.learning_rate = @StepDecay", ["write @StepDecay() to build it"]),
        ("Experiment.model = 'LeNet300'", ["Experiment.model = 'LeNet300'"]),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(run, tmp_path, binding, words):
    refused(run("--gin", REF, "--set", binding, "--out", tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()


def test_missing_and_malformed_gin_files_are_refused(run, tmp_path):
    (tmp_path / "bad.gin").write_text("Trainer.iterations = \n")
    refused(run("--gin", tmp_path / "none.gin"), "there is no config file")
    refused(run("--gin", tmp_path / "bad.gin"), "bad.gin:1")


def test_a_device_that_is_not_there_is_refused(run, tmp_path):
    refused(run("--gin", REF, "--device", "cuda:7", "--out", tmp_path / "run"), "no device 'cuda:7'", "cpu")
    refused(run("--gin", REF, "--device", "toaster", "--out", tmp_path / "run"), "no device 'toaster'")


def test_a_missing_data_set_says_what_to_do(run, tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(import_torchvision().datasets.utils, "download_and_extract_archive", no_network)
    outcome = run("--gin", "gin/ref_lenet300_mnist.gin", "--data", tmp_path / "empty", "--out", tmp_path / "run")
    refused(outcome, str(tmp_path / "empty"), "train-images-idx3-ubyte", "http", "gin/ref_lenet300_digits.gin")


def test_a_data_file_cut_short_is_refused(run, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(b"cut short")
    outcome = run("--gin", "gin/ref_lenet300_mnist.gin", "--data", tmp_path, "--out", tmp_path / "run")
    refused(outcome, "-ubyte holds 9 bytes instead of", "delete it so that it is downloaded again")


def test_an_output_folder_that_cannot_be_written_is_refused(run, tmp_path, finished):
    (tmp_path / "file").write_text("")
    refused(run("--gin", REF, "--out", tmp_path / "file" / "run"), "cannot write to the output folder")
    refused(run("--gin", REF, "--out", "/proc/run"), "cannot write to the output folder")
    refused(run("--gin", REF, "--out", finished), "is there already", "--resume")


@contextlib.contextmanager
def file_size_limit(size):
    """No file may grow beyond `size` bytes: what a full disk looks like to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_run_and_leaves_nothing_half_written(run, tmp_path):
    with file_size_limit(300_000):
        status, _, err = run("--gin", REF, *SHORT, "--out", tmp_path / "run")
    assert status == 1
    assert "cannot write the checkpoint" in err
    assert "Traceback" not in err
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_a_loss_that_is_not_a_number_ends_the_run_at_its_step(run, tmp_path):
    explode = ["Trainer.learning_rate = @MultiStepDecay()", "MultiStepDecay.scale = 1e38"]
    explode += ["MultiStepDecay.milestones = [30]"]
    (tmp_path / "explode.gin").write_text(
        "include 'base/lenet300.gin'\nExperiment.dataset = @digits\nExperiment.optimizer = @Adam\n" + "\n".join(explode)
    )
    status, _, err = run("--gin", tmp_path / "explode.gin", *SHORT, "--out", tmp_path / "run")
    assert status == 1
    assert err.startswith("failed: the loss became nan at iteration 32: the last good checkpoint is kept")
    assert [f.name for f in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-00000020.pt"]
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("line", ["Experiment.seed = 7", "Trainer.precision = 'float32'"])
def test_an_edited_config_is_noticed_when_resumed(run, finished, line):
    unfinish(finished)
    with open(finished / "config.gin", "a") as config:
        config.write(f"\n{line}\n")
    refused(run("--resume", finished), "config.gin was changed since its last checkpoint", f"{line} (was not set)")


@pytest.mark.parametrize("betas", ["''", "(0.9,)"])
def test_an_optimizer_that_cannot_be_built_is_told(betas, run, tmp_path):
    outcome = run("--gin", REF, "--smoke", "--set", f"Adam.betas = {betas}", "--out", tmp_path / "run")
    refused(outcome, "the optimizer Adam cannot be built")


def places(state, depth=3):
    """The paths of keys and indices to all that is in a state, down to a depth."""
    for key in (state if isinstance(state, dict) else range(len(state))) if depth else ():
        yield (key,)
        if isinstance(state[key], dict | list):
            yield from ((key, *rest) for rest in places(state[key], depth - 1))


def broken(path, place, value):
    """The checkpoint with something else at a place, or without it."""
    state = torch.load(path, weights_only=True)
    *outer, last = place
    part = functools.reduce(operator.getitem, outer, state)
    if value == "missing":
        del part[last]
    else:
        part[last] = value
    torch.save(state, path)


@pytest.mark.parametrize("kind", ["step", "best"])
def test_a_checkpoint_of_wrong_types_ends_in_a_sentence(kind, run, tmp_path, capsys):
    """Whatever command reads it; with a whole one before it, a run may go on from that."""
    short = ["--set", "LeNet300.width = 0.02", "--set", "Trainer.iterations = 2", "--set", "Trainer.eval_interval = 1"]
    assert run("--gin", "gin/pmf_lenet300_digits.gin", *short, "--out", tmp_path / "run")[0] == 0
    if kind == "step":
        unfinish(tmp_path / "run")
    (path,) = sorted((tmp_path / "run" / "checkpoints").glob(f"{kind}-*"))[-1:]
    found = sorted(places(torch.load(path, weights_only=True)), key=str)
    cases = [(place, value) for place in found for value in ("missing", None, "text", [1], torch.ones(2))]
    statuses = set()
    for number, (place, value) in enumerate(random.Random(0).sample(cases, 40)):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "run", copy)
        broken(copy / "checkpoints" / path.name, place, value)
        if kind == "step":
            statuses.add(run("--resume", copy)[0])
        else:
            words = ["--gin", REF, "--set", "LeNet300.width = 0.02", *SHORT, "--out", tmp_path / f"{number}-on"]
            statuses.add(run(*words, "--set", "Trainer.iterations = 1", "--weights", copy)[0])
            statuses |= {pack.main([str(copy), "-o", str(copy / "m")]), evaluation.main([str(copy)])}
            capsys.readouterr()
    assert statuses == {0, 2}


def test_a_run_whose_best_is_damaged_is_told_how_to_go_on_and_does(run, finished):
    best = sorted((finished / "checkpoints").glob("best-*"))
    for path in best:
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadInput, match=r"delete summary.json and resume"):
        RunFolder.open(finished).best()
    unfinish(finished)
    status, out, _ = run("--resume", finished)
    assert status == 0
    assert "is set aside as best-" in out
    assert RunFolder.open(finished).best()["model"]
    assert len(list((finished / "checkpoints").glob("*.damaged"))) == len(best)
