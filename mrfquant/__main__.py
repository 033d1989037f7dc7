"""The command `mrfquant`: it lists its subcommands, or hands the words that follow to one of them."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import sys
from pathlib import Path

from mrfquant.text import aligned

EXAMPLES = """\
  mrfquant run --gin gin/pmf_lenet300_digits.gin
  mrfquant round --run runs/float --bits 2
"""


def commands() -> dict[str, tuple[str, str]]:
    """Return every subcommand with its module and purpose: modules whose first line is 'mrfquant NAME: ...'."""
    found = {}
    for path in sorted((Path(__file__).parent / "commands").glob("*.py")):
        first_line = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        if match := re.fullmatch(r"mrfquant ([\w-]+): (.+)", first_line):
            found[match[1]] = (f"mrfquant.commands.{path.stem}", match[2])
    return found


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; without one, list them."""
    words = sys.argv[1:] if argv is None else argv
    known = commands()
    if words and words[0] == "--version":
        from mrfquant import __version__

        print(f"mrfquant {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        print("mrfquant trains and rounds neural networks on few levels, by inference in Markov random fields.\n")
        print(aligned([[f"  mrfquant {name}", line] for name, (_, line) in known.items()]))
        print(f"\nexamples:\n{EXAMPLES}\nEach command has --help.")
        return 0
    if words[0] not in known:
        near = difflib.get_close_matches(words[0], known, n=1)
        hint = f"did you mean mrfquant {near[0]}?" if near else "mrfquant --help lists the commands"
        print(f"error: there is no command {words[0]!r}: {hint}", file=sys.stderr)
        return 2
    return importlib.import_module(known[words[0]][0]).main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
