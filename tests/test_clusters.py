"""What docs/clusters.md promises: sweeps on one PostgreSQL server, one of them killed, and its scripts run by SLURM,
stopped and put into the queue again. Each is left out where there is no server or no scheduler."""

import json
import os
import pwd
import re
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


SCRIPTS = re.findall(r"```bash\n(.*?)```", (Path(__file__).parents[1] / "docs" / "clusters.md").read_text(), re.DOTALL)
FOR_ONE_MACHINE = {
    r"--nodes=2": "--nodes=1",
    r"#SBATCH --gpus(-per-node)?=\d\n": "",
    r"--cpus-per-task=\d+": "--cpus-per-task=1",
    r"--array=0-7": "--array=0-1",
    r"--nproc-per-node=8": "--nproc-per-node=2",
    r"--gin my.gin": "--gin gin/pmf_lenet300_digits.gin",
}


class Job:
    """A script of the guide, as SLURM runs it."""

    def __init__(self, folder: Path, script: str, changes: dict[str, str]) -> None:
        for before, after in (FOR_ONE_MACHINE | changes).items():
            script = re.sub(before, after, script)
        (folder / "job.sh").write_text(script)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        command = ["sbatch", "--parsable", "--export=ALL", "job.sh"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        self.folder, self.number = folder, done.stdout.strip()

    def show(self, field: str) -> set[str]:
        """A field of all tasks that SLURM still knows."""
        shown = subprocess.run(["scontrol", "show", "job", self.number], capture_output=True, text=True).stdout
        return set(re.findall(rf"\b{field}=(\S+)", shown))

    def wait(self, is_so, seconds: float = 600) -> None:
        for _ in range(int(seconds * 2)):
            if is_so():
                return
            time.sleep(0.5)
        subprocess.run(["scancel", self.number])
        said = "\n".join(path.read_text() for path in self.folder.glob("slurm-*.out"))
        raise AssertionError(f"{self.show('JobState')} {self.show('Reason')}\n{said}")

    def wait_for_end(self) -> None:
        def ended() -> bool:
            if "BeginTime" in self.show("Reason"):  # SLURM lets two minutes pass before a job runs again
                subprocess.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now"], capture_output=True)
            return self.show("JobState") <= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}

        self.wait(ended)
        assert self.show("JobState") == {"COMPLETED"}, (self.folder / f"slurm-{self.number}.out").read_text()

    def stop(self) -> None:
        """The signal that comes before the time is over."""
        subprocess.run(["scancel", "--signal=TERM", self.number], check=True)


@pytest.fixture
def submit(tmp_path):
    if not shutil.which("sbatch") or subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("there is no SLURM: apt-get install slurm-wlm, and start slurmctld and slurmd")
    return lambda script, changes: Job(tmp_path, script, changes)


@pytest.mark.slow
def test_a_run_that_slurm_stops_is_queued_again_and_ends(submit, tmp_path):
    length = "--set 'Trainer.iterations = 3000' --set 'Trainer.eval_interval = 100'"
    job = submit(SCRIPTS[0], {r"--set 'Experiment.shard = True'": rf"\g<0> {length}"})
    job.wait(lambda: any(tmp_path.glob("runs/mine/checkpoints/*")))
    job.stop()
    job.wait(lambda: job.show("Restarts") == {"1"})
    assert not (tmp_path / "runs/mine/summary.json").exists()
    job.wait_for_end()
    assert json.loads((tmp_path / "runs/mine/summary.json").read_text())["iterations"] == 3000
    lines = (tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == list(range(100, 3001, 100))


@pytest.mark.slow
def test_a_run_that_slurm_starts_with_a_mistake_is_not_queued_again(submit, tmp_path):
    job = submit(SCRIPTS[0], {r"--set 'Experiment.shard = True'": "--set 'Labelling.shrad = True'"})
    job.wait(lambda: job.show("JobState") <= {"COMPLETED", "FAILED"})
    assert job.show("Restarts") == {"0"}
    assert "shrad" in (tmp_path / f"slurm-{job.number}.out").read_text()


@pytest.mark.slow
def test_tasks_of_slurm_divide_a_table(submit, tmp_path):
    job = submit(SCRIPTS[1], {r"--rows mnist --seeds 3": "--rows lenet300 --methods REF,PMF,BC --smoke"})
    job.wait_for_end()
    folders = [path.parent for path in tmp_path.glob("runs/table/paper-smoke/*/summary.json")]
    assert len(folders) == 3
    assert all((folder / "log.txt").read_text().count("results in") == 1 for folder in folders)


@pytest.mark.slow
def test_workers_of_slurm_that_are_stopped_go_on_with_their_sweep(submit, database, tmp_path):
    space = CONFIGS / "spaces" / "pmf.space"
    changes = {r"--trials 200": f"--trials {TRIALS} --set 'Trainer.iterations = 400'", "my.space": str(space)}
    job = submit(SCRIPTS[2], changes | {r"--storage \S+": f"--storage {database}"})
    job.wait(lambda: len(list(tmp_path.glob("runs/sweep/**/checkpoints"))) > 1)
    job.stop()
    job.wait_for_end()
    study = optuna.load_study(study_name="pmf_lenet300_digits", storage=database)
    assert sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in study.trials) == TRIALS
