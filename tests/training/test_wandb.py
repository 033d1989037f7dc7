"""Without credentials W&B neither asks nor waits, and writes only inside the run's folder."""

import os
import subprocess
import sys

from mrfquant.training.wandb_collector import default_mode


def test_offline_without_credentials_and_nothing_outside_the_run(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    command = [sys.executable, "-m", "mrfquant.run", "--gin", "gin/ref_lenet300_digits.gin", "--smoke"]
    done = subprocess.run(
        [*command, "--out", tmp_path / "run"],
        env={**environment, "HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert [path for path in home.rglob("*") if "wandb" in path.name] == []
    assert "wandb" not in done.stdout + done.stderr


def test_credentials_make_it_online_and_the_variable_decides(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert default_mode() == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret")
    assert default_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert default_mode() == "disabled"
