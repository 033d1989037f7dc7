"""mrfquant round: round a trained network to few levels, without training."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrfquant.commands.parser import Parser, run_command, writable
from mrfquant.errors import BadInput

if TYPE_CHECKING:
    from mrfquant.rounding import LayerReport, Rounded, Rounding
    from mrfquant.storage.run_folder import RunFolder
    from mrfquant.training.experiment import Experiment

LANGUAGE = ("text", "to", "test", "windows", "html")


def parser() -> Parser:
    """Return the command's arguments."""
    p = Parser(
        "round",
        """Round a trained float network to few levels, layer by layer: each layer is a pairwise Markov random field
        whose energy is half the mean squared error of its outputs. In Python, mq.round_network does it.""",
        [
            "--run runs/ref_lenet300_mnist-seed0-20260101-120000 --bits 2",
            "--model FOLDER --text calibration.txt --to q2_0 --out small",
        ],
    )
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", metavar="RUN", type=Path, help="the folder of a finished float run")
    what.add_argument("--weights", metavar="FILE", type=Path, help="a state dict (.pt or .safetensors); needs --gin")
    what.add_argument("--model", metavar="FOLDER", type=Path, help="a language model: of transformers, or a .gguf file")
    p.add_argument("--gin", metavar="FILE", help="the configuration that --weights belong to")
    p.add_argument("--bits", metavar="N", type=int, default=2, help="2^N even levels, scaled by row (default: 2)")
    p.add_argument("--trellis", metavar="M", type=int, help="take paths through a trellis of that memory, as 10")
    p.add_argument("--solver", metavar="NAME", default="icm", help="nearest, gptq, icm (default), mean_field or tree")
    p.add_argument("--group-size", metavar="N", type=int, help="weights of a row that share a scale (default: all)")
    p.add_argument(
        "--override",
        metavar="PATTERN=N",
        action="append",
        default=[],
        help="other bits for some weights, as layers.4*=3",
    )
    p.add_argument("--exclude", metavar="PATTERN", action="append", default=[], help="weights to leave in float")
    for flag in ("--set", "--import", "--device", "--data"):
        p.share(flag)
    p.add_argument(
        "--export-field",
        metavar="FILE.uai",
        type=Path,
        help="write rows of layers as fields FILE-layerK-rowR.uai",
    )
    p.add_argument("--rows", metavar="N", type=int, default=8, help="rows of a layer to write (default: 8)")
    p.add_argument("--out", metavar="DIR", type=Path, help="the run's folder (default: a new one under runs/)")
    language = p.add_argument_group("of a language model (docs/language_models.md)")
    language.add_argument("--text", metavar="FILE", type=Path, help="a text to calibrate with")
    language.add_argument("--to", metavar="TYPE", help="the type of file: q2_0, q1_0, tq2_0, q4_0, mlx2, mlx3 or mlx4")
    language.add_argument("--test", metavar="FILE", type=Path, help="measure perplexity on it (default: on the text)")
    language.add_argument("--windows", metavar="N", type=int, nargs=2, help="pieces of 512 tokens of both (16 16)")
    language.add_argument("--html", metavar="FILE", type=writable, help="write a report to look at, too")
    return p


def run(arguments: argparse.Namespace) -> int:
    """Read the float network, round it, test it, write a run folder."""
    from mrfquant.compute import choose_device
    from mrfquant.config.gin_files import Config
    from mrfquant.config.settings import configured
    from mrfquant.data import data_root
    from mrfquant.rounding.answers import fingerprint  # and registers what the configuration names
    from mrfquant.storage.run_folder import RunFolder, new_run_path
    from mrfquant.storage.weights import load_weights, read_weights
    from mrfquant.training import Console
    from mrfquant.training.experiment import Experiment

    source = arguments.run or arguments.weights
    file = RunFolder.open(arguments.run).config if arguments.run else arguments.gin
    config = Config(file, _bindings(arguments), arguments.imports, trusted=not arguments.run)
    state = read_weights(source)
    if arguments.run and (RunFolder.open(source).summary() or {}).get("labelled"):
        raise BadInput(f"{source} is quantized already: give a float run, one whose config sets no Labelling.levels")
    device = choose_device(arguments.device)
    with config.locate_errors():
        experiment = configured(Experiment, device=device, data_root=data_root(arguments.data))
        config.check_all_used(in_files=False)  # what trains a network is not asked for
    load_weights(experiment.model, state, source)
    if arguments.export_field:
        from mrfquant.commands.export_field import ExportingSolver

        rounding = _solver(experiment)[1]
        rounding.solver = ExportingSolver(rounding.solver, arguments.export_field, arguments.rows)
    name = f"round_{_solver(experiment)[1].solver.name}_{source.stem}"
    path = arguments.out or new_run_path(Path("runs"), name, experiment.seed)
    asked = f"{config.text()}\n# of a network with the digest {fingerprint(experiment.model, (), '')}\n"
    with RunFolder.create(path, asked, again=True) as folder:
        if (summary := folder.summary()) is not None:
            print(f"{path} is finished: {experiment.objective.primary_metric.of_test(summary)}")
            return 0
        try:
            folder.write_environment(device)
            folder.write_operative(config.operative())
            folder.write_identity({**experiment.identity(), "iterations": 0})
            with closing(Console(folder.log)) as console:
                folder.write_summary(_round(experiment, folder, console.say))
        except BaseException:  # there is nothing in it to go on from
            shutil.rmtree(folder.path)
            raise
    return 0


def _solver(experiment: Experiment) -> tuple[Rounded, Rounding]:
    """Return what holds the labels and what assigns them, as `_bindings` asks for them."""
    from mrfquant.rounding import Rounded

    solver = experiment.inference
    if not isinstance(solver, Rounded) or solver.rounding is None:
        raise BadInput("rounding needs @Rounded with a rounding: take them out of --set")
    return solver, solver.rounding


def _round(experiment: Experiment, folder: RunFolder, say: Callable[[str], None]) -> dict[str, Any]:
    """Round and test the network, save it; the summary of the run."""
    from mrfquant.packing.runs import packing_record
    from mrfquant.rounding.answers import RoundedWeight
    from mrfquant.training import evaluate

    solver, rounding = _solver(experiment)
    objective, metric = experiment.objective, experiment.objective.primary_metric
    before = evaluate(experiment.model, experiment.dataset, "test", objective)[metric.name]
    who, dataset, labelling = experiment.identity(), experiment.dataset, experiment.labelling
    say(f"{who['method']}  {who['bits']}-bit {who['model']} on {who['dataset']}")
    say(f"{who['parameters']:,} parameters, {who['labelled']:,} of them quantized; {rounding.images:,} {dataset.unit}")
    say(f"folder {folder.path}")
    say(f"{'layer':<34}{'rows x weights':>16}{'energy / gptq':>16}{'labels changed':>16}{'seconds':>9}")

    def report(layer: LayerReport) -> None:
        shape = f"{layer.rows:,} x {layer.n:,}"
        changed = "" if layer.changed is None else f"{layer.changed:.1%}"
        say(f"{layer.name:<34}{shape:>16}{layer.relative:>16.3f}{changed:>16}{layer.seconds:>9.1f}")

    levels = {name: labelling.block_of(name).levels for name in labelling.labelled.spans}
    result = rounding.run(experiment.model, levels, rounding.batches(dataset), report, say)
    on_levels = {name: answer for name, answer in result.answers.items() if isinstance(answer, RoundedWeight)}
    if len(on_levels) == len(levels):
        solver.assign(on_levels)
    val, test = (evaluate(experiment.model, dataset, split, objective) for split in ("val", "test"))
    state = {name: tensor.clone() for name, tensor in experiment.model.state_dict().items()}
    best: dict[str, Any] = {"iteration": 0, f"val_{metric.name}": val[metric.name], "model": state}
    best["solution"] = solver.solution()
    best["packing"] = packing_record(experiment.model, labelling, dataset, objective, solver.method, experiment.seed)
    best["packing"]["labels"] = result.entries()
    result.pack()  # refuses weights that are not exactly what their labels say
    folder.checkpoints.save_best(0, best)
    say("")
    say(f"{metric.line(test)}, float {metric.text(before)}{' (STAND-IN DATA)' if dataset.stand_in else ''}")
    say(f"time         {result.seconds:.1f} s")
    say(f"results in   {folder.path}")
    return {
        **who,
        "iterations": 0,
        "best_iteration": 0,
        f"best_val_{metric.name}": val[metric.name],
        **{f"test_{name}": value for name, value in test.items()},
        f"float_test_{metric.name}": before,
        "seconds": result.seconds,
        "steps_per_second": 0.0,
        "layers": [asdict(layer) for layer in result.layers],
    }


def _bindings(arguments: argparse.Namespace) -> list[str]:
    """Return the settings that the flags stand for; what is no weight of a layer stays free."""
    return [
        "Experiment.inference = @Rounded",
        "Rounded.rounding = @Rounding()",
        f"Rounding.solver = {arguments.solver!r}",
        *_levels(arguments.bits, arguments.trellis, arguments.override),
        "Labelling.which = 'weights'",
        f"Labelling.exclude = {arguments.exclude}",
        *_scales(arguments.group_size),
        *arguments.set,
    ]


def _levels(bits: int, memory: int | None, overrides: list[str]) -> list[str]:
    """Bind even levels, or a trellis, and others by pattern: a scope for each number of bits."""
    kind, settings = "uniform", {}
    if memory is not None:
        kind, settings = "Trellis", {f"Trellis.memory = {memory}": None}
    settings[f"{kind}.bits = {bits}"] = None
    entries = []
    for text in overrides:
        pattern, _, other = text.rpartition("=")
        if not pattern or not other.isdigit():
            raise BadInput(f"--override {text}, expected a pattern of names and bits, as layers.4*=3")
        settings[f"bits{other}/{kind}.bits = {other}"] = None
        entries.append(f"{pattern!r}: @bits{other}/{kind}(), ")
    return [f"Labelling.levels = {{{''.join(entries)}'*': @{kind}()}}", *settings]


def _scales(group_size: int | None) -> list[str]:
    if group_size is None:
        return ["Labelling.scale = 'channel'"]
    both = [f"{part}.group_size = {group_size}" for part in ("Labelling", "Rounding")]
    return ["Labelling.scale = 'group'", *both]


def _checked(p: Parser, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments if they are those of a language model."""
    if missing := [name for name in ("text", "to", "out") if getattr(arguments, name) is None]:
        p.error(f"--model needs --{missing[0]}")
    others = {"gin", "bits", "trellis", "group_size", "override", "set", "imports", "device", "data", "export_field"}
    if given := [name for name in sorted(others) if getattr(arguments, name) != p.get_default(name)]:
        p.error(f"--{given[0].replace('_', '-')} does not go with --model: --to says what weights can be")
    return arguments


def _run_language_model(arguments: argparse.Namespace) -> int:
    """Round a language model and write it for another program."""
    from mrfquant.language import round_language_model

    calibration, test = arguments.windows or (16, 16)
    result = round_language_model(
        arguments.model,
        arguments.text,
        arguments.out,
        arguments.to,
        arguments.solver,
        arguments.exclude,
        calibration,
        test=arguments.test,
        test_windows=test,
    )
    print(result)
    if arguments.html:
        from mrfquant.language.page import page
        from mrfquant.storage.files import write_text

        write_text(arguments.html, page(result))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the command with these arguments."""
    p = parser()
    arguments = p.parse_args(argv)
    if arguments.model:
        return run_command(_run_language_model, _checked(p, arguments))
    if given := [name for name in LANGUAGE if getattr(arguments, name) is not None]:
        p.error(f"--{given[0]} belongs to a language model: give --model FOLDER")
    if arguments.weights and not arguments.gin:
        p.error("--weights needs --gin FILE, the configuration of the network that they belong to")
    if arguments.run and arguments.gin:
        p.error("--run has a configuration of its own: leave out --gin, change settings with --set")
    return run_command(run, arguments)
