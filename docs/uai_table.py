"""Every solver on every UAI field of a folder, against the results that lie beside them.

python docs/uai_table.py FOLDER --seconds 10 --solvers portfolio,icm,max_product,toulbar2

NAME.uai.evid is the evidence of NAME.uai; NAME.uai.MAR, NAME.uai.PR and NAME.uai.MAP are the references, where they
exist. The gap of a labelling is its energy less the lowest that anybody found, the reference included; 'proved' means
that the solver's own bound says that none is lower, after so many seconds, 'none' that it found forbidden labellings
only.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from mrfquant.commands.infer import read_reference, solver_file
from mrfquant.config.gin_files import Config
from mrfquant.config.settings import configured
from mrfquant.errors import BadInput
from mrfquant.mrf import FactorGraph, Result, solve, uai
from mrfquant.text import markdown

Results = dict[str, dict[str, Result]]


def solve_by(name: str, graph: FactorGraph, evidence: dict[int, int], seconds: float) -> Result:
    """Run a solver of gin/mrf/ or of a gin file."""
    with Config(solver_file("--solvers", name), [f"solve.seconds = {seconds}"]).locate_errors():
        return configured(solve, graph=graph, evidence=evidence, seed=0)


def print_table(title: str, results: Results, names: list[str], cell: Callable[[str, Result], str]) -> None:
    """Print a row for each field and a column for each solver; nothing if there is nothing to say."""
    if all(cell(model, result) == "-" for model, row in results.items() for result in row.values()):
        return
    rows = [["", *(Path(name).stem.replace("_", " ") for name in names)]]
    for model, row in results.items():
        rows.append([model, *(cell(model, row[name]) if name in row else "refused" for name in names)])
    print(f"\n{title}:\n\n{markdown(rows)}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--solvers", default="portfolio,belief_propagation")
    p.add_argument("--seconds", type=float, default=10.0, help="for each start of a solver")
    arguments = p.parse_args()
    names = arguments.solvers.split(",")
    results: Results = {}
    lowest, marginals, log_z = {}, {}, {}
    for path in sorted(arguments.folder.glob("*.uai")):
        graph, model = uai.read_model(path), path.stem
        beside = {kind: Path(f"{path}.{kind}") for kind in ("evid", "MAR", "PR", "MAP")}
        there = {kind: file for kind, file in beside.items() if file.exists()}
        evidence = uai.read_evidence(there["evid"]) if "evid" in there else {}
        if "MAR" in there:
            marginals[model] = graph.flat(read_reference("mar", there["MAR"], graph))
        if "PR" in there:
            log_z[model] = read_reference("pr", there["PR"], graph)
        if "MAP" in there:
            lowest[model] = graph.energy(torch.tensor(read_reference("map", there["MAP"], graph))).item()
        results[model] = {}
        for name in names:
            try:
                result = results[model][name] = solve_by(name, graph, evidence, arguments.seconds)
            except BadInput as error:
                print(f"{model}, {name}: refused: {error}", file=sys.stderr)
                continue
            lowest[model] = min(lowest.get(model, math.inf), result.energy)
            print(f"{model}, {name}: energy {result.energy:.4f}, {result.seconds:.1f} s", file=sys.stderr)

    def gap(model: str, result: Result) -> str:
        excess = result.energy - lowest[model]
        text = "0" if excess < 1e-6 * max(1.0, abs(lowest[model])) else f"{excess:.3g}"
        proof = f"proved, {result.seconds:.1f} s"
        return "none" if math.isinf(result.energy) else proof if result.optimal else text

    def error(model: str, result: Result) -> str:
        return f"{(result.marginals - marginals[model]).abs().mean().item():.4f}" if model in marginals else "-"

    def excess(model: str, result: Result) -> str:
        known = model in log_z and result.log_z is not None
        return f"{((result.log_z or 0.0) - log_z[model]) / math.log(10):+.3g}" if known else "-"

    print_table("Energy above the lowest, or seconds to the proof", results, names, gap)
    print_table("Mean absolute error of the marginals", results, names, error)
    print_table("log10 Z less the reference", results, names, excess)


if __name__ == "__main__":
    main()
