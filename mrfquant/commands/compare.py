"""mrfquant compare: set runs side by side: seeds averaged, settings that differ, curves."""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrfquant.commands.parser import Parser, entry_point, writable
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.storage.files import write_text


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "compare",
        """Compare runs: results averaged over seeds, settings that differ, training curves. A group is a line: its
        mean, +- the standard deviation over the seeds; the best on validation comes first. Unfinished runs are in the
        curves, not in the means. Group by `run` for a line per run.""",
        [
            "runs/pmf_* runs/ref_* --html report.html",
            "runs/ --by method,Geometric.rho --csv runs.csv --figures figures/",
        ],
    )
    p.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders, or folders that contain them")
    p.add_argument(
        "--by",
        metavar="NAMES",
        help="what makes a group, comma-separated: fields of summary.json, gin settings (default: the whole "
        "configuration but the seed)",
    )
    p.add_argument("--html", metavar="FILE", type=writable, help="write a page with tables and curves, one file in all")
    p.add_argument(
        "--csv", metavar="FILE", type=writable, help="write a row per run: its summary and differing settings"
    )
    p.add_argument("--figures", metavar="DIR", type=Path, help="write the training curves there, a PNG for each metric")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, print the tables, write what was asked for."""
    # Imported here so that --help and a mistyped flag answer at once.
    from mrfquant.reports.groups import check_groups, group_runs
    from mrfquant.reports.runs import find_runs, read_run
    from mrfquant.reports.tables import csv_text, text_report

    by = None if arguments.by is None else [name.strip() for name in arguments.by.split(",") if name.strip()]
    if by == []:
        raise BadInput("--by names nothing: give fields of summary.json or gin settings, such as method,model")
    if arguments.figures:
        need_extra("reports", "--figures")
    notes: list[str] = []

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)
        notes.append(text)

    runs = [read_run(path, warn) for path in find_runs(arguments.runs, warn)]
    groups = group_runs(runs, by)
    check_groups(groups, by, warn)
    print(text_report(groups, by, shutil.get_terminal_size((120, 24)).columns))
    if arguments.csv:
        writing(arguments.csv, lambda path: write_text(path, csv_text(runs)))
    if arguments.figures:
        from mrfquant.reports.figures import write_figures

        writing(arguments.figures, lambda path: write_figures(groups, path))
    if arguments.html:
        from mrfquant.reports.page import page

        writing(arguments.html, lambda path: write_text(path, page(groups, by, notes)))
    return 0


def writing(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file or folder that was asked for, and say so."""
    try:
        write(path)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; give another path") from None
    print(f"wrote {path}", file=sys.stderr)


main = entry_point(parser, run)
