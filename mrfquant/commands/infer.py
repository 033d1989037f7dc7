"""mrfquant infer: compute marginals, the likeliest labelling or log Z of a field in a UAI file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.commands.parser import Parser, entry_point, writable
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from mrfquant.mrf import FactorGraph, Result
    from mrfquant.mrf.uai import Model

DEFAULT_SOLVER = {"mar": "belief_propagation", "pr": "belief_propagation", "map": "portfolio"}


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "infer",
        """Infer marginals, the likeliest labelling or log Z of a Markov random field. log10 Z is printed as exact, a
        bound or an estimate, an energy with a bound below which no labelling is.""",
        [
            "grid.uai --task mar --out grid.MAR",
            "grid.uai --evid grid.uai.evid --task map --seconds 10",
        ],
    )
    p.add_argument("model", metavar="MODEL.uai", type=Path, help="a MARKOV or BAYES model")
    p.add_argument("--evid", metavar="FILE", type=Path, help="observed labels (default: none)")
    p.add_argument(
        "--task",
        choices=["mar", "map", "pr", "mmap"],
        default="mar",
        help="marginals, likeliest labelling, partition function, or likeliest labels of the variables of --query with "
        "all others summed out (default: mar)",
    )
    p.add_argument("--query", metavar="FILE", type=Path, help="the variables of --task mmap")
    p.add_argument(
        "--solver",
        metavar="NAME",
        help="a name of gin/mrf/ or a gin file (default: exact for thin fields of up to 1,000 variables; for others "
        "belief_propagation, for map portfolio)",
    )
    p.add_argument("--seconds", metavar="N", type=float, help="of a start at most (default: no limit)")
    p.share("--set")
    p.share("--import")
    p.share("--seed", help="seed of the first start (default: 0)")
    p.share("--device")
    p.add_argument("--out", metavar="FILE", type=writable, help="write the result there, in UAI's format of the task")
    p.share("--png", help="draw the least energy so far and the bound over time there")
    p.add_argument("--reference", metavar="FILE", type=Path, help="a result to compare with")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Read, solve, print a summary, write the result."""
    from mrfquant.mrf import uai
    from mrfquant.mrf.thin import solve_thin

    if arguments.png:
        need_extra("reports", "infer --png")
    if arguments.seconds is not None and not 0 < arguments.seconds < math.inf:
        raise BadInput(f"--seconds {arguments.seconds}, expected a number above 0")
    if (arguments.task == "mmap") != bool(arguments.query):
        raise BadInput("--task mmap and --query FILE, which names its variables, go together")
    if arguments.task == "mmap":
        return _marginal_map(arguments)
    name = arguments.solver or DEFAULT_SOLVER[arguments.task]
    file = solver_file("--solver", name)
    model = uai.read_arrays(arguments.model)
    evidence = uai.read_evidence(arguments.evid) if arguments.evid else {}
    print(f"{arguments.model.name}: {_describe(model)}, {len(evidence)} observed", flush=True)
    special = arguments.solver or arguments.set or arguments.imports or arguments.png or arguments.reference
    result = None if special or arguments.device != "auto" else solve_thin(model, evidence)
    if result is None:
        _solve_by(name, file, model, evidence, arguments)
    else:
        _print("clique tree", result)
        _write(arguments, result, result.marginals)
    return 0


def _marginal_map(arguments: argparse.Namespace) -> int:
    """Solve the task MMAP exactly, print and write the labels."""
    from mrfquant.mrf import marginal_map, uai

    graph, query = uai.read_model(arguments.model), uai.read_query(arguments.query)
    rest, kept = graph.condition(uai.read_evidence(arguments.evid) if arguments.evid else {})
    number = {v: i for i, v in enumerate(kept.tolist())}
    if unknown := [v for v in query if v not in number]:
        told = f"{arguments.query} asks for variable {unknown[0]}"
        raise BadInput(f"{told}, which the model has not, or which is observed")
    labels, log_sum = marginal_map(rest, [number[v] for v in query])
    names = kept.tolist()
    found = {names[v]: label for v, label in labels.items()}
    print(f"marginal MAP: exact, log10 of the sum over all others {log_sum / math.log(10):.6f}")
    print("labels       " + " ".join(f"{v}:{label}" for v, label in found.items()))
    if arguments.out:
        uai.write_mmap(arguments.out, {v: found[v] for v in query})
        print(f"written      {arguments.out}")
    return 0


def _solve_by(name: str, file: str, model: Model, evidence: dict[int, int], arguments: argparse.Namespace) -> None:
    """Solve by the solver of a gin file; print, compare, draw and write the result."""
    import torch

    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.mrf import FactorGraph, solve

    graph = model.graph()
    reference = read_reference(arguments.task, arguments.reference, graph) if arguments.reference else None
    settings = [] if arguments.seconds is None else [f"solve.seconds = {arguments.seconds}"]
    config = Config(file, settings + arguments.set, arguments.imports)
    with config.locate_errors():
        configured(solve, graph=FactorGraph([1]), seed=arguments.seed)  # so that bad and unused settings are known
        config.check_all_used()
        device = choose_device(arguments.device)
        there = graph.to(torch.float32 if device.type == "mps" else None, device)
        result = _solve(there, evidence, arguments.seed, bool(arguments.png))
    _print(Path(name).stem, result)
    if reference is not None:
        print(f"reference    {_compare(arguments.task, result, reference, graph)}")
    if arguments.png:
        _draw(arguments.png, result)
        print(f"picture      {arguments.png}")
    _write(arguments, result, graph.per_variable(result.marginals))


def solver_file(flag: str, name: str) -> str:
    """Return the gin file of a solver: one of gin/mrf/ by its name there, or a file of the user's own."""
    from mrfquant.config.gin_files import CONFIGS

    known = sorted(file.stem for file in CONFIGS.glob("mrf/*.gin"))
    if name in known:
        return f"mrf/{name}.gin"
    if not Path(name).is_file():
        raise BadInput(f"{flag} {name!r} is neither a gin file nor one of {', '.join(known)}")
    return name


def _solve(graph: FactorGraph, evidence: dict[int, int], seed: int, trace: bool) -> Result:
    from tqdm import tqdm

    from mrfquant.config.settings import configured
    from mrfquant.mrf import Row, solve

    with tqdm(desc="solving", unit=" iterations", leave=False, disable=None, delay=1) as bar:

        def show(row: Row) -> None:
            bar.update()
            bar.set_postfix(residual=f"{row.residual:.1e}", energy=f"{row.best:.6g}", refresh=False)

        return configured(solve, graph=graph, evidence=evidence, seed=seed, on_row=show, trace=trace)


def _describe(model: Model) -> str:
    labels = model.cardinalities
    if not len(labels):
        return "no variable"
    kinds = f"{labels.min()} to {labels.max()}" if labels.min() < labels.max() else f"{labels.max()}"
    arity = max((scopes.shape[1] for scopes, _ in model.groups), default=0)
    count = sum(len(scopes) for scopes, _ in model.groups)
    return f"{len(labels):,} variables of {kinds} labels, {count:,} factors of up to {arity} variables"


def _print(name: str, result: Result) -> None:
    ends = {"converged": "converged", "iterations": "not converged", "time": "stopped by the clock"}
    if result.direction == "exact":
        print(f"{name}: exact, {result.seconds:.2f} s")
    else:
        print(f"{name}: {ends[result.reason]} after {result.iterations:,} iterations, {result.seconds:.2f} s")
    if result.log_z is not None:
        print(f"log10 Z      {result.log_z / math.log(10):.6f} ({result.direction})")
    found = f"{result.energy:.6f}" if math.isfinite(result.energy) else "none: every labelling tried is forbidden"
    print(f"energy       {found}")
    if math.isfinite(result.bound):
        worth = "proved optimal" if result.optimal else f"gap {result.gap:.6f}"
        print(f"bound        {result.bound:.6f} ({worth})")


def read_reference(task: str, path: Path, graph: FactorGraph) -> Any:
    """Return the result of a task in a file: rows of marginals, labels, or log Z; refused unless it fits the graph."""
    from mrfquant.mrf import uai

    read: dict[str, Callable[[Path], Any]] = {"mar": uai.read_mar, "map": uai.read_map, "pr": uai.read_pr}
    reference = read[task](path)
    labels = graph.cardinalities.tolist()
    fits = task == "pr" or (
        len(reference) == len(labels)
        and all(len(x) == c if task == "mar" else 0 <= x < c for x, c in zip(reference, labels, strict=True))
    )
    if not fits:
        raise BadInput(f"{path} does not fit the model: it has another number of variables or labels")
    return reference


def _compare(task: str, result: Result, reference: Any, graph: FactorGraph) -> str:
    import torch

    if task == "mar":
        error = (graph.flat(reference) - result.marginals.cpu()).abs()
        return f"mean absolute error {error.mean():.2e}, largest {max(error.tolist(), default=0):.2e}"
    if task == "map":
        theirs = graph.energy(torch.tensor(reference)).item()
        return f"energy {theirs:.6f}, ours is {result.energy - theirs:+.6f}"
    if result.log_z is None:
        return f"log10 Z {reference / math.log(10):.6f}: this solver gives none"
    return f"log10 Z {reference / math.log(10):.6f}, ours is {(result.log_z - reference) / math.log(10):+.6f}"


def _draw(path: Path, result: Result) -> None:
    """Draw the least energy so far and the bound over time; between them lies the unknown least energy."""
    from mrfquant.reports.figures import png

    with png(path, 6, 3.5) as figure:
        axes = figure.add_subplot()
        for name, column in (("energy", "best"), ("bound", "bound")):
            seen = [row for row in result.trace if math.isfinite(getattr(row, column))]
            axes.plot([row.seconds for row in seen], [getattr(row, column) for row in seen], marker=".", label=name)
        axes.set_xlabel("seconds")
        axes.legend()


def _write(arguments: argparse.Namespace, result: Result, marginals: list[list[float]]) -> None:
    from mrfquant.mrf import uai

    out = arguments.out
    if not out:
        return
    if arguments.task == "mar":
        uai.write_mar(out, marginals)
    elif arguments.task == "map" and math.isinf(result.energy):
        raise RunFailed(f"no labelling to write to {out}: every one tried is forbidden; give more --seconds")
    elif arguments.task == "map":
        uai.write_map(out, result.labels.tolist())
    elif result.log_z is None:
        raise BadInput("this solver gives no log Z to write: choose another for --task pr, such as belief_propagation")
    else:
        uai.write_pr(out, result.log_z)
    print(f"written      {out}")


main = entry_point(parser, run)
