"""Every command shows its help and refuses bad input in the same form, and stops politely."""

import argparse
import functools
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mrfquant
import mrfquant.run
from mrfquant.__main__ import commands
from mrfquant.commands.parser import SHARED, run_command

COMMANDS = list(commands())
ENVIRONMENT = {**os.environ, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
every_command = pytest.mark.parametrize("name", COMMANDS)


def call(*words, **options):
    command = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT, **options)


def parser(name):
    return importlib.import_module(commands()[name][0]).parser()


def test_the_commands_are_listed_with_a_line_each():
    done = call("mrfquant")
    assert done.returncode == 0
    assert {"run", "sweep", "compare", "infer", "pack", "eval", "reproduce", "bench"} <= set(COMMANDS)
    for name, (_, line) in commands().items():
        assert f"mrfquant {name} " in done.stdout
        assert line in done.stdout
    assert call("mrfquant", "--help").stdout == done.stdout


def test_what_is_no_command_is_refused():
    for word, hint in (("rnu", "did you mean mrfquant run?"), ("xyz", "mrfquant --help lists the commands")):
        done = call("mrfquant", word)
        assert done.returncode == 2
        assert done.stderr == f"error: there is no command '{word}': {hint}\n"


def test_the_version_is_told():
    assert call("mrfquant", "--version").stdout == f"mrfquant {mrfquant.__version__}\n"


@pytest.mark.parametrize("words", [["mrfquant", "run"], ["mrfquant.run"]])
def test_run_is_one_command_under_its_names(words):
    assert call(*words, "--help").stdout == parser("run").format_help()


def test_run_works_as_a_script():
    """As the Run button of an editor starts it: with the package's own folder in front of the standard library's."""
    done = subprocess.run(
        [sys.executable, mrfquant.run.__file__, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_has_the_name_of_one_of_the_standard_library():
    names = {path.stem for path in Path(mrfquant.__file__).parent.rglob("*.py")}
    assert not names & (set(sys.stdlib_module_names) - {"__main__"})


@every_command
def test_help_has_usage_a_paragraph_examples_and_exit_status(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = parser(name).format_help()
    paragraphs = [p.strip() for p in text.split("\n\n")]
    assert paragraphs[0].startswith(f"usage: mrfquant {name} ")
    assert paragraphs[1].rstrip().endswith(".")
    assert re.fullmatch(rf"examples:(\n *mrfquant {name} .*){{2}}", paragraphs[-2])
    assert paragraphs[-1].startswith("exit status: 0 ")
    assert "2 bad input" in paragraphs[-1]
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 40, "more than a screen"


@every_command
def test_every_argument_says_what_it_is_and_shared_flags_say_it_alike(name):
    for action in parser(name)._actions:
        assert action.help, action.dest
        for flag in action.option_strings:
            if flag in SHARED:
                assert action.metavar == SHARED[flag].get("metavar"), flag
                assert action.help == SHARED[flag].get("help", action.help), flag


@every_command
def test_examples_parse(name):
    p = parser(name)
    for line in p.epilog.splitlines():
        if line.startswith("  mrfquant"):
            p.parse_args(shlex.split(line)[2:])


@every_command
def test_an_unknown_flag_is_refused_in_one_line(name, capsys):
    p = parser(name)
    with pytest.raises(SystemExit) as exit:
        p.parse_args(["--no-such-flag"])
    assert exit.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith(f"; see mrfquant {name} --help\n")
    assert err.count("\n") == 1


OUTPUTS = [
    (name, flag)
    for name in COMMANDS
    for action in parser(name)._actions
    for flag in action.option_strings
    if flag in ("--json", "--markdown", "--csv", "--html", "--trace", "--onnx", "-o")
    or (flag in ("--png", "--out") and action.metavar == "FILE")
]


@pytest.mark.parametrize(("name", "flag"), OUTPUTS)
def test_a_result_that_cannot_be_written_is_refused_before_the_work(name, flag, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "below", "/proc/nowhere/file"):
        with pytest.raises(SystemExit) as exit:
            parser(name).parse_args([flag, str(path)])
        assert exit.value.code == 2
        err = capsys.readouterr().err
        assert "cannot be written" in err
        assert flag in err
    assert [f.name for f in tmp_path.iterdir()] == ["file"]  # nothing is left behind


def test_a_run_whose_reader_goes_is_finished_and_its_log_has_it_all(tmp_path):
    words = ["--gin", "gin/ref_lenet300_digits.gin", "--set", "Trainer.iterations = 30", "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mrfquant", "run", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(120), process.stderr.read()) == (0, "")
    assert "test top-1" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "terminated\n"), (signal.SIGINT, "interrupted\n")])
def test_a_signal_at_any_moment_is_answered(number, said, capsys, request):
    # A process that was started in the background may ignore SIGINT.
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert run_command(lambda arguments: signal.raise_signal(number), argparse.Namespace()) == 128 + number
    assert capsys.readouterr().err == said
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_output_that_nobody_reads_ends_a_command_quietly(capsys):
    def write(arguments):
        raise BrokenPipeError

    assert run_command(write, argparse.Namespace()) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""
