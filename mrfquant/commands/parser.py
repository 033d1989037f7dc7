"""Arguments, help texts, error messages and polite stopping that all commands share."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from mrfquant.errors import BadInput, RunFailed
from mrfquant.text import printable, silence

EXITS = "0 done, 1 failed, 2 bad input, 130 interrupted"


def writable(name: str) -> Path:
    """Return the path to write a result to, an argument's type; refuse at once what cannot work."""
    path = Path(name)
    folder = next((f for f in path.absolute().parents if f.exists()), Path("/"))
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if path.exists() and not path.is_file():  # a pipe or a device: to open it would end what its reader waits for
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "no permission")
        else:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be written ({error.strerror}): give another path") from None
    return path


# Flags that several commands have, in the words that all of them use.
SHARED: dict[str, dict[str, Any]] = {
    "--set": {
        "metavar": "BINDING",
        "action": "append",
        "default": [],
        "help": "override one setting, as in gin: 'Name.parameter = value'; may be repeated",
    },
    "--import": {
        "metavar": "MODULE",
        "dest": "imports",
        "action": "append",
        "default": [],
        "help": "a module of your own that registers parts; may be repeated",
    },
    "--seed": {"metavar": "N", "type": int, "default": 0},
    "--jobs": {"metavar": "N", "type": int, "default": 1},
    "--smoke": {"action": "store_true", "help": "20 iterations on stand-in data: does this work here?"},
    "--device": {"metavar": "NAME", "default": "auto", "help": "auto, cpu, cuda, cuda:1, mps (default: auto)"},
    "--data": {"metavar": "ROOT", "help": "data root (default: $MRFQUANT_DATA, or ~/.cache/mrfquant/data)"},
    "--wandb": {"choices": ["online", "offline", "disabled"]},
    "--json": {"metavar": "FILE", "type": writable, "help": "write the figures there, too"},
    "--markdown": {"metavar": "FILE", "type": writable, "help": "write the tables there, too"},
    "--png": {"metavar": "FILE", "type": writable},
}


class Parser(argparse.ArgumentParser):
    """Parse the arguments of one command; its help has a paragraph, the arguments, examples and the exit status."""

    def __init__(self, name: str, about: str, examples: Sequence[str], exits: str = EXITS) -> None:
        prog = f"mrfquant {name}"
        lines = "\n".join(f"  {prog} {example}".rstrip() for example in examples)
        super().__init__(
            prog=prog,
            description=textwrap.fill(" ".join(about.split()), 100),
            epilog=f"examples:\n{lines}\n\nexit status: {exits}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28),
        )

    def format_help(self) -> str:
        """Write the help with a usage of one line: what is required, then [options]."""
        groups = [group for group in self._mutually_exclusive_groups if group.required]
        grouped = [action for group in groups for action in group._group_actions]
        words = ["(" + " | ".join(_word(action) for action in group._group_actions) + ")" for group in groups]
        alone = [action for action in self._actions if action not in grouped]
        words += [_word(action) for action in alone if action.option_strings and action.required]
        named = [action for action in alone if not action.option_strings]
        words += [_word(action) if action.required else f"[{_word(action)}]" for action in named]
        self.usage = " ".join([self.prog, *words, "[options]"])
        return super().format_help()

    def share(self, flag: str, **changes: Any) -> None:
        """Add a flag that other commands have, too, in the same words, but for the `changes`."""
        self.add_argument(flag, **{**SHARED[flag], **changes})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse words that no file of a run could hold, before anything is done."""
        for word in sys.argv[1:] if args is None else args:
            if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
                self.error(f"{os.fsencode(word)!r} is no UTF-8 text, expected names and settings in UTF-8")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments in the form of all refusals."""
        said = message.removeprefix("argument ").replace(": ", " ", 1) if message.startswith("argument ") else message
        self.exit(2, f"error: {said}; see {self.prog} --help\n")


def _word(action: argparse.Action) -> str:
    """Return an argument as a usage shows it."""
    value = action.metavar or "{" + ",".join(action.choices or ()) + "}"
    return " ".join([*action.option_strings[:1], str(value)])


class Terminated(KeyboardInterrupt):
    """SIGTERM came: a polite kill stops a command as Ctrl-C does."""


def entry_point(parser: Callable[[], Parser], run: Callable[[argparse.Namespace], int]) -> Callable[..., int]:
    """Return the `main` of a command: parse the words given, or those of the command line, and run it."""

    def main(argv: list[str] | None = None) -> int:
        return run_command(run, parser().parse_args(argv))

    return main


def run_command(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; bad input and failed runs become one sentence on standard error and an exit status."""
    try:
        with _terminable():
            status = command(arguments)
            sys.stdout.flush()  # here, where a closed pipe is told
            return status
    except BadInput as error:
        print(f"error: {_in_a_terminal(error)}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"failed: {_in_a_terminal(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # as in `command | head`: nobody reads any more
        silence(sys.stdout)
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"failed: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        print("interrupted" if number == signal.SIGINT else "terminated", file=sys.stderr)
        return 128 + number


def _in_a_terminal(error: Exception) -> str:
    """Make a message printable, in which words of a file may occur that a terminal would obey."""
    return "\n".join(map(printable, str(error).split("\n")))


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` within the block; only the main thread may do so."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
