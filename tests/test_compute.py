"""Two processes train as one: same batches, same weights, one writer; when one dies, the run ends with a sentence."""

import copy
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mrfquant.compute import (
    _agree_on_names,
    background,
    carry_channels_last,
    join_team,
    synchronise_batch_norm,
)
from mrfquant.errors import BadInput
from mrfquant.storage.checkpoints import Checkpoints

CONFIG = """
include 'base/digits.gin'
include 'base/lenet300.gin'
include 'base/sgd.gin'
include 'base/binary.gin'
Experiment.inference = @ProximalMeanField
ProximalMeanField.beta = @Constant()    # a large one would enlarge the differences in rounding, too
SGD.lr = 0.01
Trainer.iterations = {iterations}
Trainer.eval_interval = 10
Trainer.log_interval = 5
"""
COMMAND = ["-m", "mrfquant", "run"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    def write(iterations):
        path = tmp_path_factory.mktemp("config") / "config.gin"
        path.write_text(CONFIG.format(iterations=iterations))
        return path

    return write


@pytest.fixture(scope="module")
def run(python):
    def run(processes, *arguments):
        """What so many processes say, each with what torchrun tells it."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            team = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(found.getsockname()[1]),
                "WORLD_SIZE": str(processes),
            }
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
        started = [python.start(*COMMAND, *arguments, **team, **rank) for rank in ranks]
        ended = [process.wait() for process in started]
        for done in ended:
            assert done.returncode == 0, done.stderr
        return "".join(done.stdout for done in ended)

    return run


@pytest.fixture(scope="module")
def alone(run, config, tmp_path_factory):
    """The run folder of 20 iterations of one process."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    run(1, "--gin", config(20), "--out", folder)
    return folder


def variables(folder):
    return Checkpoints(folder / "checkpoints").newest(print)["inference"]["variables"][0]


def test_two_processes_equal_one_with_the_same_batches(run, config, alone, tmp_path):
    together = tmp_path / "together"
    said = run(2, "--gin", config(20), "--out", together)
    assert "on 2 x cpu" in said
    assert said.count("results in") == 1  # one process speaks
    assert (variables(alone) - variables(together)).abs().max() < 1e-5
    ours, theirs = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (alone, together)
    )
    assert [r["iteration"] for r in theirs] == [5, 10, 15, 20]
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_checkpoint_goes_on_with_another_number_of_processes(run, config, alone, tmp_path, first, second):
    run(first, "--gin", config(20), "--out", tmp_path / "part")
    (tmp_path / "part" / "summary.json").unlink()  # as if it had been killed after iteration 10
    (tmp_path / "part" / "checkpoints" / "step-00000020.pt").unlink()
    assert "going on from iteration 10" in run(second, "--resume", tmp_path / "part")
    assert (variables(alone) - variables(tmp_path / "part")).abs().max() < 1e-5


def test_processes_that_share_variables_out_end_as_one_does_and_one_goes_on_from_them(run, config, alone, tmp_path):
    folder = tmp_path / "shared"
    run(2, "--gin", config(20), "--out", folder, "--set", "Experiment.shard = True")
    assert (variables(alone) - variables(folder)).abs().max() < 1e-5
    (folder / "summary.json").unlink()
    (folder / "checkpoints" / "step-00000020.pt").unlink()
    assert "going on from iteration 10" in run(1, "--resume", folder)
    assert (variables(alone) - variables(folder)).abs().max() < 1e-5


def workers(pid):
    """The processes that `pid` has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes under /proc")
def test_a_killed_process_of_torchrun_ends_the_run_and_it_can_be_resumed(config, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *COMMAND]
    command += ["--gin", str(config(100_000)), "--out", str(folder)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(workers(process.pid)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "another process of the run is gone" in err or "stopped at iteration" in (folder / "log.txt").read_text()
    state = Checkpoints(folder / "checkpoints").newest(print)
    assert state["iteration"] > 0
    assert torch.isfinite(state["inference"]["variables"][0]).all()


def torchrun(*arguments, restarts=5):
    """An agent; its messages come with `communicate`."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--max-restarts={restarts}", *map(str, arguments)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    return subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill_a_worker(agent, folder):
    """Once there is a checkpoint, one of those that an agent has started."""
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(workers(agent.pid)[-1], signal.SIGKILL)


def assert_same_end(folder, undisturbed):
    """Of two runs: the same figures and variables, up to rounding, and one record for each iteration."""
    found, expected = (json.loads((f / "summary.json").read_text()) for f in (folder, undisturbed))
    for name in ("best_iteration", "best_val_top1", "test_top1"):
        assert found[name] == pytest.approx(expected[name], abs=0.2), name  # an image of 500
    assert (variables(folder) - variables(undisturbed)).abs().max() < 1e-4
    records = [json.loads(line)["iteration"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records == list(range(5, 205, 5))


DYING = """
import os, signal, sys
import torch.distributed
from mrfquant.commands.run import main
from mrfquant.compute import Team
from mrfquant.training import Trainer

def dies(owner, name, after=0):
    function, calls = getattr(owner, name), []
    def dying(*args, **kwargs):
        calls.append(name)
        if len(calls) > after:
            os.kill(os.getpid(), getattr(signal, os.environ.get("DIE_BY", "SIGKILL")))
        return function(*args, **kwargs)
    setattr(owner, name, dying)

if os.environ["RANK"] == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
    PLACE
sys.exit(main(sys.argv[1:]))
"""
PLACES = {
    "before it meets the others": "dies(torch.distributed, 'init_process_group')",
    "before there is a folder": "dies(Team, 'agree')",
    "in its first step": "dies(Trainer, '_step')",
    "after a checkpoint": "dies(Trainer, '_step', 25)",
}


@pytest.fixture(scope="module", params=[False, True])
def undisturbed(request, config, run, tmp_path_factory):
    """A run of two processes, and its settings; plain and shared out."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    words = ["--gin", config(200), "--set", f"Experiment.shard = {request.param}"]
    run(2, *words, "--out", folder)
    return folder, words


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_torchrun_starts_killed_processes_again_and_the_run_ends_as_if_undisturbed(undisturbed, tmp_path, place):
    whole, words = undisturbed
    (script := tmp_path / "dying.py").write_text(DYING.replace("PLACE", PLACES[place]))
    folder = tmp_path / "killed"
    agent = torchrun("--standalone", "--nproc_per_node=2", script, *words, "--out", folder, "--continue", restarts=1)
    _, err = agent.communicate(timeout=300)
    assert agent.returncode == 0, err
    assert_same_end(folder, whole)
    assert ("going on from iteration" in (folder / "log.txt").read_text()) == (place == "after a checkpoint")


@pytest.mark.slow
def test_two_nodes_go_on_when_a_process_of_one_is_killed(config, run, tmp_path):
    path = config(200)
    run(2, "--gin", path, "--out", tmp_path / "undisturbed")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run", "--local-addr=127.0.0.1"]
    folder = tmp_path / "killed"
    command = [*COMMAND, "--gin", path, "--out", folder, "--continue"]
    agents = [torchrun("--nnodes=2", "--nproc_per_node=1", *where, *command) for _ in range(2)]
    kill_a_worker(agents[1], folder)
    for agent in reversed(agents):
        _, err = agent.communicate(timeout=300)
        assert agent.returncode == 0, err
    assert_same_end(folder, tmp_path / "undisturbed")
    assert "going on from iteration" in (folder / "log.txt").read_text()


def test_processes_that_are_started_again_do_not_read_what_those_before_have_left():
    store = dist.HashStore()

    def meet():
        """Two processes, of which the second one comes first, and then the first one late."""
        with ThreadPoolExecutor() as pool:
            second = pool.submit(_agree_on_names, store, 1, 2, 20)
            time.sleep(0.1)
            first = pool.submit(_agree_on_names, store, 0, 2, 20)
            assert first.result() == second.result()
            return first.result()

    store.set("name 1", "killed")  # before the first one came
    found = [meet() for _ in range(3)]
    assert len(set(found)) == 3
    assert not any("killed" in names for names in found)
    with pytest.raises(RuntimeError):
        _agree_on_names(store, 1, 2, 0.2)  # alone, however many have met here


def assert_ends_in_a_sentence(done, status, sentence):
    assert done.returncode == status, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "by", "sentence"),
    [
        pytest.param(
            "before it meets the others",
            "SIGKILL",
            "process 0 of 2 did not meet the others at 127.0.0.1",
            marks=pytest.mark.slow,
        ),
        ("before there is a folder", "SIGKILL", "another process of the run is gone"),
        ("before there is a folder", "SIGSTOP", "another process of the run does not answer"),
        pytest.param(
            "after a checkpoint",
            "SIGSTOP",
            "another process of the run does not answer",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_is_lost_or_hangs_ends_the_run_in_a_sentence(python, config, tmp_path, place, by, sentence):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    team = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "MRFQUANT_TIMEOUT": "3", "DIE_BY": by}
    words = ["-c", DYING.replace("PLACE", PLACES[place]), "--gin", config(100_000), "--out", tmp_path / "run"]
    processes = [python.start(*words, **team, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in (0, 1)]
    try:
        assert_ends_in_a_sentence(processes[0].wait(), 1, sentence)
    finally:
        if by == "SIGSTOP":
            processes[1].send_signal(signal.SIGKILL)
    assert processes[1].wait().returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "wrong",
    [
        {"WORLD_SIZE": "two"},
        {"WORLD_SIZE": "0"},
        {"RANK": "x"},
        {"RANK": "2"},
        {"RANK": "-1"},
        {"LOCAL_RANK": ""},
        {"MASTER_PORT": "http"},
        {"MASTER_PORT": "99999999"},
        {"MASTER_PORT": None},
        {"MRFQUANT_TIMEOUT": "0"},
    ],
)
def test_a_team_that_the_environment_does_not_describe_is_refused(monkeypatch, wrong):
    described = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in {**described, **wrong}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=next(iter(wrong))):
        join_team(torch.device("cpu"))


@pytest.fixture
def team_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"track_running_stats": False}, {"affine": False, "momentum": None}])
def test_synchronised_batch_norm_is_torchs(team_of_one, dtype, settings):
    parameters = torch.float64 if dtype == torch.float64 else torch.float32  # those of bfloat16 inputs are float32
    theirs = torch.nn.BatchNorm2d(3, **settings, dtype=parameters)
    ours = synchronise_batch_norm(copy.deepcopy(theirs), torch.device("cpu"))
    x = (torch.randn(4, 3, 5, 5, dtype=torch.float64) * 2 + 3).to(dtype)
    for training in (True, True, False):
        theirs.train(training)
        ours.train(training)
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_images_between_convolutions_lie_channels_last_and_weights_stay():
    layers = [torch.nn.Conv2d(3, 6, 3), torch.nn.ReLU(), torch.nn.Conv2d(6, 8, 3), torch.nn.Conv2d(8, 2, 1, stride=2)]
    model = torch.nn.Sequential(*layers)
    plain = copy.deepcopy(model)
    carry_channels_last(model)
    seen = {}
    model[1].register_forward_hook(lambda module, inputs, y: seen.setdefault("between", y))
    x = torch.randn(4, 3, 8, 8)
    expected, found = plain(x), model(x.contiguous(memory_format=torch.channels_last))  # however they come
    torch.testing.assert_close(found, expected)
    assert seen["between"].is_contiguous(memory_format=torch.channels_last)
    assert model[2].weight.is_contiguous()
    for y in (expected, found):
        y.square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def print_threads() -> int:
    print(torch.get_num_threads())
    return 0


def test_jobs_share_the_threads_that_the_user_allows(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(6)  # as OMP_NUM_THREADS=6 does
        process = background(print_threads, log=tmp_path / "log", jobs=2)
    finally:
        torch.set_num_threads(before)
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "3\n"
