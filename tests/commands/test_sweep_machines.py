"""Sweeps of several machines on one database: a real PostgreSQL server, two sweeps at once, one of them killed."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
import pytest

from mrfquant.config.gin_files import CONFIGS

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
TRIALS = 8


@pytest.fixture
def database():
    """The URL of an empty database of a server that runs as long as the test does."""
    pytest.importorskip("psycopg")
    if not PROGRAMS:
        pytest.skip("there is no PostgreSQL server: apt-get install postgresql")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folder = Path(tempfile.mkdtemp())  # not under pytest's, which another user may not enter
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name  # root is refused
    if os.getuid() == 0:
        shutil.chown(folder, user)

    def run(*command):
        subprocess.run(command, check=True, user=user, cwd=folder, capture_output=True)

    run(PROGRAMS[-1] / "initdb", "-D", folder / "data", "-U", "sweep", "--auth=trust")
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    run(PROGRAMS[-1] / "pg_ctl", "-D", folder / "data", "-o", options, "-l", folder / "log", "-w", "start")
    try:
        yield f"postgresql+psycopg://sweep@127.0.0.1:{port}/postgres"
    finally:
        run(PROGRAMS[-1] / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.mark.slow
def test_machines_that_share_a_database_lose_no_trial_of_one_that_is_killed(database, tmp_path):
    command = [sys.executable, "-m", "mrfquant", "sweep", "--gin", "gin/pmf_lenet300_digits.gin"]
    command += ["--trials", str(TRIALS), "--space", str(CONFIGS / "spaces" / "pmf.space"), "--out", str(tmp_path / "s")]
    command += ["--storage", database, "--set", "Trainer.iterations = 200", "--set", "Trainer.eval_interval = 40"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    first, second = (
        subprocess.Popen(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    )
    for line in first.stdout:
        if line.startswith("[2/"):
            break
    time.sleep(0.5)  # its worker is at the next trial
    children = map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())
    for pid in [first.pid, *children]:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said
    study = optuna.load_study(study_name="pmf_lenet300_digits", storage=database)
    ended = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    assert len(ended) == TRIALS
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED", "FAIL"}
    for trial in study.trials:  # what was cut short came again with the same settings, in the same folder
        if trial.state.name == "FAIL" and trial.params:
            assert any(trial.params.items() <= t.params.items() for t in ended)
    assert len({tuple(sorted(trial.params.items())) for trial in ended}) == TRIALS  # no two machines proposed the same
    assert "best: trial" in said
