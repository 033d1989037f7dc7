"""python -m mrfquant: the commands, a line each."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from mrfquant.command_line import aligned


def commands() -> dict[str, str]:
    """Every command with what it does: the modules whose first line is 'python -m mrfquant.NAME: ...'."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        if match := re.match(rf"python -m mrfquant\.{path.stem}: (.+)", said):
            found[path.stem] = match[1]
    return found


def main(argv: list[str] | None = None) -> int:
    """List them; there is nothing else to ask for."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] not in ("-h", "--help"):
        hint = f"python -m mrfquant.{words[0]}" if words[0] in commands() else "python -m mrfquant lists the commands"
        print(f"error: python -m mrfquant takes no {words[0]!r}: {hint}", file=sys.stderr)
        return 2
    print("mrfquant quantizes neural networks by inference in Markov random fields. Its commands:\n")
    print(aligned([[f"  python -m mrfquant.{name}", line] for name, line in commands().items()]))
    print("\nEach has --help.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
