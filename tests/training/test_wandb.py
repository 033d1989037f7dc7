"""Without credentials W&B neither asks nor waits, and writes only inside the run's folder."""

import json
import os
import struct
import time

from mrfquant.commands.run import main
from mrfquant.training.trackers import default_mode


def run_without_credentials(python, tmp_path, *words):
    """The command in a home without anything of W&B's."""
    (tmp_path / "home").mkdir()
    taken = dict.fromkeys([name for name in os.environ if name.startswith("WANDB")])
    command = ["-m", "mrfquant", "run", "--gin", "gin/ref_lenet300_digits.gin", "--smoke", "--out", tmp_path / "run"]
    return python.run(*command, *words, HOME=str(tmp_path / "home"), **taken)


def test_offline_without_credentials_and_nothing_outside_the_run(python, tmp_path):
    done = run_without_credentials(python, tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert [path for path in (tmp_path / "home").rglob("*") if "wandb" in path.name] == []
    assert "wandb" not in done.stdout + done.stderr


def test_online_without_credentials_is_refused_in_a_sentence(python, tmp_path):
    done = run_without_credentials(python, tmp_path, "--wandb", "online")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Weights & Biases cannot start (")
    assert done.stderr.endswith("): log in, or give --wandb offline\n")


def records(folder):
    """What an offline run has recorded. A .wandb file is a LevelDB log after 7 bytes: blocks of 32 KiB with chunks of
    (checksum, length, type), of which types 2, 3, 4 are the first, middle and last part of a longer record."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 30
    while path.stat().st_size < 1000 and time.monotonic() < deadline:  # W&B's own process may still be writing
        time.sleep(0.2)
    data, position, parts, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


def test_an_offline_run_holds_identity_settings_curves_and_summary(tmp_path, monkeypatch):
    groups = set()
    for seed in (1, 2):
        folder = tmp_path / f"run{seed}"
        settings = ["--set", "Trainer.iterations = 40", "--set", "Trainer.eval_interval = 20"]
        out = ["--out", str(folder), "--wandb", "offline", "--seed", str(seed)]
        assert main(["--gin", "gin/pmf_lenet300_digits.gin", *settings, *out]) == 0
        found = records(folder)
        (run,) = [r.run for r in found if r.HasField("run")][:1]
        assert (run.project, run.job_type, run.display_name) == ("mrfquant", "train", f"run{seed}")
        assert set(run.tags) == {"PMF", "lenet300", "digits", "1-bit"}
        groups.add(run.run_group)
        config = {u.key: json.loads(u.value_json) for u in run.config.update}
        assert config["Geometric"]["rho"] == 1.2
        assert config["Trainer"]["iterations"] == 40
        assert not any("." in key for key in config)
        rows = []
        for record in found:
            if record.HasField("history"):
                items = record.history.item
                rows.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items})
        assert [row["iteration"] for row in rows] == [20, 40]
        assert rows[-1]["best_val_top1"] == max(row["val_top1"] for row in rows)
        assert {"loss", "beta", "entropy", "flips"} <= rows[-1].keys()
        summary = {}
        for record in found:
            if record.HasField("summary"):
                for item in record.summary.update:
                    summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        assert summary["test_top1"] == json.loads((folder / "summary.json").read_text())["test_top1"]
    assert len(groups) == 1  # seeds of one experiment are one group


def test_credentials_make_it_online_and_the_variable_decides(monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert default_mode() == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret")
    assert default_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert default_mode() == "disabled"
