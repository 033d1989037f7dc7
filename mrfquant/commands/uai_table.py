"""mrfquant uai-table: every solver on every field of a folder, against the results that lie beside them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.errors import BadInput, RunFailed
from mrfquant.storage.files import write_text
from mrfquant.text import markdown

if TYPE_CHECKING:
    from torch import Tensor

    from mrfquant.mrf import Result

EXACT = ("junction_tree", "enumeration")
PEER = "toulbar2"  # another program's solver


@dataclass
class Entry:
    """What one solver found on one field; error is that of the marginals, excess that of log Z over the reference."""

    error: float | None
    excess: float | None
    energy: float
    bound: float
    seconds: float


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "uai-table",
        """Run every solver on every UAI field of a folder and compare with the references. For every NAME.uai in
        the folder NAME.uai.evid is the evidence and NAME.uai.MAR, NAME.uai.PR and NAME.uai.MAP are the references,
        where they exist. The gap of a labelling is its energy less the lowest that anybody found, the reference
        included; 'proved' means that the solver's own bound says that none is lower, 'none' that only forbidden
        labellings were found, 'refused' that the solver cannot do this field. The solver 'toulbar2' is that program,
        if pytoulbar2 is installed.""",
        ["fields/ --seconds 20 --markdown table.md"],
        "0 done, 1 a field or a solver on it was refused, 2 bad input, 130 interrupted",
    )
    p.add_argument("folder", metavar="DIR", type=Path, help="a folder of UAI files")
    p.add_argument(
        "--solvers", metavar="NAMES", help="names of gin/mrf/ or gin files, comma-separated (default: all approximate)"
    )
    p.add_argument("--seconds", metavar="N", type=float, default=20.0, help="for each start of a solver (default: 20)")
    p.share("--seed", help="seed of the first start (default: 0)")
    p.share("--markdown")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Run them all, print a line each, then the tables."""
    from mrfquant.commands.infer import solver_file, time_limit
    from mrfquant.config.gin_files import CONFIGS

    models = sorted(arguments.folder.glob("*.uai"))
    if not models:
        raise BadInput(f"{arguments.folder} holds no file NAME.uai")
    time_limit("--seconds", arguments.seconds)
    known = sorted(file.stem for file in CONFIGS.glob("mrf/*.gin"))
    names = [n.strip() for n in (arguments.solvers or ",".join(n for n in known if n not in EXACT)).split(",")]
    for name in names:
        if name != PEER:
            solver_file("--solvers", name)
    found: dict[str, dict[str, Entry]] = {}
    lowest: dict[str, float] = {}
    refusals: list[str] = []

    def refuse(what: str, error: BadInput) -> None:
        refusals.append(what)
        print(f"{what}: refused: {error}", file=sys.stderr, flush=True)

    for model in models:
        try:
            found[model.stem], reference = _solve_with_all(model, names, arguments.seconds, arguments.seed, refuse)
        except BadInput as error:
            refuse(model.stem, error)
            continue
        lowest[model.stem] = min([reference, *(entry.energy for entry in found[model.stem].values())])
    columns: dict[str, Callable[[str, Entry], str]] = {
        "Mean absolute error of the marginals": lambda _, entry: "-" if entry.error is None else f"{entry.error:.4f}",
        "log10 Z less the reference": lambda _, entry: "-" if entry.excess is None else f"{entry.excess:+.3g}",
        "Gap of the labelling's energy": lambda model, entry: _gap(entry, lowest[model]),
        "Seconds": lambda model, entry: f"{entry.seconds:.1f}",
    }
    tables = [f"{title}:\n\n{table}" for title, text in columns.items() if (table := _table(found, names, text))]
    text = "\n\n".join(tables)
    print(f"\n{text}")
    if arguments.markdown:
        write_text(arguments.markdown, text + "\n")
    if refusals:
        raise RunFailed(f"refused were {', '.join(refusals)}; the tables have the rest")
    return 0


def _solve_with_all(
    model: Path, names: list[str], seconds: float, seed: int, refuse: Callable[[str, BadInput], None]
) -> tuple[dict[str, Entry], float]:
    """Return what each solver found, without those that refuse the field; and the energy of the reference."""
    import torch

    from mrfquant.benchmarks.toulbar2 import solve_by_toulbar2
    from mrfquant.commands.infer import read_reference, solver_file, time_limit
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.mrf import solve, uai

    def beside(ending: str) -> Path | None:
        path = model.with_name(model.name + ending)
        return path if path.exists() else None

    graph = uai.read_model(model)
    evidence = uai.read_evidence(path) if (path := beside(".evid")) else {}
    marginals = graph.flat(read_reference("mar", path, graph)) if (path := beside(".MAR")) else None
    log_z = read_reference("pr", path, graph) if (path := beside(".PR")) else None
    labelling = read_reference("map", path, graph) if (path := beside(".MAP")) else None
    reference = math.inf if labelling is None else graph.energy(torch.tensor(labelling)).item()
    entries = {}
    for name in names:
        try:
            if name == PEER:
                result = solve_by_toulbar2(graph, evidence, seconds)
            else:
                with Config(solver_file("--solvers", name), time_limit("--seconds", seconds)).locate_errors():
                    result = configured(solve, graph=graph, evidence=evidence, seed=seed)
        except BadInput as error:
            refuse(f"{model.stem}, {name}", error)
            continue
        entries[name] = _entry(result, marginals, log_z)
        off = "" if entries[name].error is None else f", marginals off by {entries[name].error:.4f}"
        print(f"{model.stem}, {name}: energy {result.energy:.4f}{off}, {result.seconds:.1f} s", flush=True)
    return entries, reference


def _entry(result: Result, marginals: Tensor | None, log_z: float | None) -> Entry:
    error = None if marginals is None else (result.marginals - marginals).abs().mean().item()
    excess = None if log_z is None or result.log_z is None else (result.log_z - log_z) / math.log(10)
    return Entry(error, excess, result.energy, result.bound, result.seconds)


def _gap(entry: Entry, lowest: float) -> str:
    """Return the gap to the lowest energy, and whether the solver itself proves that there is none."""
    from mrfquant.mrf.solver import proves

    if math.isinf(entry.energy):
        return "none"
    gap = entry.energy - lowest
    text = "0" if gap < 1e-5 * max(1.0, abs(lowest)) / 10 else f"{gap:.3g}"
    return f"{text}, proved" if proves(entry.bound, entry.energy) else text


def _table(found: dict[str, dict[str, Entry]], names: list[str], text: Callable[[str, Entry], str]) -> str:
    """Nothing if there is nothing to say."""
    if all(text(model, entry) == "-" for model, entries in found.items() for entry in entries.values()):
        return ""
    rows = [["", *(Path(name).stem.replace("_", " ") for name in names)]]
    for model, entries in found.items():
        rows.append([model, *(text(model, entries[n]) if n in entries else "refused" for n in names)])
    return markdown(rows)


main = entry_point(parser, run)
