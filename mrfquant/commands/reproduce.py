"""mrfquant reproduce: train the cells of the paper's tables and print them beside the paper's."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from mrfquant.commands.parser import Parser, entry_point
from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput
from mrfquant.reproduction import SCALES, TABLES, Campaign, Cell, overview, picture, render, table
from mrfquant.storage.files import write_text


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "reproduce",
        """Run the cells of the paper's tables and set the results beside the paper's. What is done is kept:
        interrupted or run again, it goes on where it stopped, inside a run too; started several times, on machines
        that share the folder, the processes divide the runs. The table `paper` runs nothing: it has the paper's
        figures, and below them those of the finished runs of every scale, with what they cost.""",
        [
            "results --rows mnist --seeds 3 --jobs 2",
            "paper --out runs/baselines",
        ],
        "0 every cell is done, 1 some failed, 2 bad input, 130 interrupted",
    )
    tables = ["paper", *TABLES]
    p.add_argument("table", choices=tables, metavar="TABLE", help=", ".join(tables))
    p.add_argument("--rows", metavar="NAMES", help="data sets or networks, comma-separated (default: all)")
    p.add_argument("--methods", metavar="NAMES", help="columns, comma-separated (default: all)")
    p.add_argument(
        "--seeds",
        metavar="N",
        type=int,
        default=1,
        help="runs of every cell (default: 1); what is there beyond is shown, too",
    )
    p.add_argument(
        "--scale",
        choices=SCALES,
        default="paper",
        help="budget: the paper's (default), or CIFAR-10 for 20 epochs at full or a quarter of the width",
    )
    p.add_argument("--weights", metavar="FILE|RUN", type=Path, help="what every run starts from, as resnet20 needs it")
    p.share("--jobs", help="cells at a time; they share the cores (default: 1)")
    p.share("--device")
    p.add_argument(
        "--compile", action="store_true", help="train through torch.compile (needs a C++ compiler on the CPU)"
    )
    p.share("--data")
    p.add_argument(
        "--out", metavar="DIR", type=Path, help="of the runs (default: runs/reproduce; paper: runs/baselines)"
    )
    p.share("--wandb", default="disabled", help="Weights & Biases (default: disabled)")
    p.share("--smoke")
    p.share("--markdown")
    p.share("--png", help="draw the table `paper` there, too")
    return p


def chosen(arguments: argparse.Namespace) -> list[Cell]:
    """Return the cells of the table that the arguments ask for."""
    from mrfquant.config.gin_files import CONFIGS

    cells = [cell for cell in TABLES[arguments.table] if (CONFIGS / cell.file(arguments.scale)).exists()]
    if not cells:
        raise BadInput(f"the table {arguments.table} has no cell at --scale {arguments.scale}: leave that out")
    cells = _matching(cells, arguments.rows, "--rows", lambda c: (c.dataset, c.model, f"{c.dataset}-{c.model}"))
    return _matching(cells, arguments.methods, "--methods", lambda c: (c.column,))


def _matching(cells: Sequence[Cell], names: str | None, flag: str, of: Callable[[Cell], tuple[str, ...]]) -> list[Cell]:
    if names is None:
        return list(cells)
    wanted = [name.strip().lower() for name in names.split(",")]
    known = dict.fromkeys(name for cell in cells for name in of(cell))
    for name in wanted:
        if name not in {k.lower() for k in known}:
            raise BadInput(f"{flag} {name!r} is not in this table at this --scale: choose among {', '.join(known)}")
    return [cell for cell in cells if any(name.lower() in wanted for name in of(cell))]


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing, print the table."""
    for flag in ("seeds", "jobs"):
        if getattr(arguments, flag) < 1:
            raise BadInput(f"--{flag} {getattr(arguments, flag)}, expected at least 1")
    of_paper = arguments.table == "paper"
    if arguments.out is None:
        arguments.out = Path("runs/baselines" if of_paper else "runs/reproduce")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise BadInput(f"--out {arguments.out} is a file: give a folder")
    if of_paper:
        return _show_paper(arguments)
    if arguments.png:
        raise BadInput(f"--png draws the table paper, not {arguments.table}: leave it out")
    cells = chosen(arguments)
    options = {"wandb": arguments.wandb, "device": arguments.device, "data": arguments.data}
    options["weights"] = arguments.weights
    settings = ["Trainer.compile = True"] if arguments.compile else []
    campaign = Campaign(
        cells, arguments.seeds, arguments.scale, arguments.out, arguments.jobs, options, settings, arguments.smoke
    )
    total, missing = len(cells) * arguments.seeds, campaign.missing()
    done = total - len(missing)
    print(f"{total} runs, {done} done already", flush=True)
    if problem := _problem_with_weights([cell for cell, _ in missing], arguments.weights):
        if done:
            _print_table(campaign)
        raise BadInput(problem)
    failed = elsewhere = 0
    for outcome in campaign.run():
        done, what = done + 1, f"{outcome.cell.config} {' '.join(outcome.cell.settings)} seed {outcome.seed}"
        elsewhere += outcome.elsewhere
        failed += outcome.accuracy is None and not outcome.elsewhere
        number = outcome.cell.metric.text
        result = f"failed: {outcome.message}" if outcome.accuracy is None else number(outcome.accuracy)
        result = "another process is at work on it" if outcome.elsewhere else result
        print(f"[{done}/{total}] {' '.join(what.split())}: {result}", flush=True)
    text = _print_table(campaign)
    if elsewhere:
        print(f"\n{elsewhere} runs are done by other processes: repeat the command for the whole table")
    if arguments.markdown:
        write_text(arguments.markdown, text + "\n")
    return 1 if failed else 0


def _show_paper(arguments: argparse.Namespace) -> int:
    lines = overview(arguments.out)
    print(f"Test top-1 %, mean ± deviation (seeds); the paper's figures, below them ours\n\n{table(lines)}")
    if arguments.markdown:
        write_text(arguments.markdown, table(lines) + "\n")
    if arguments.png:
        need_extra("reports", "--png")
        picture(lines, arguments.png)
    return 0


def _print_table(campaign: Campaign) -> str:
    text = render(campaign.cells, campaign.accuracies())
    what = f"Test {campaign.cells[0].metric.head}, {campaign.scale} scale"
    print(f"\n{what}{', STAND-IN DATA' if campaign.smoke else ''}\n\n{text}", flush=True)
    return text


def _problem_with_weights(missing: Sequence[Cell], weights: Path | None) -> str:
    networks = ", ".join(dict.fromkeys(cell.model for cell in missing if cell.trained))
    if networks and weights is None:
        return f"the runs of {networks} that are missing start from trained weights: give --weights FILE"
    if "," in networks:
        return f"--weights {weights} is one network's, and {networks} are to be run: choose with --rows"
    if missing and weights is not None and not weights.exists():
        return f"--weights {weights} is not there: give a .pt or .safetensors file, or the folder of a finished run"
    return ""


main = entry_point(parser, run)
