"""Runs that belong together, the statistics of a group, and the settings in which runs differ."""

import difflib
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrfquant.errors import BadInput
from mrfquant.metric import Metric, is_number
from mrfquant.reports.runs import Run, Warn
from mrfquant.text import printable

DEFAULT_BY = ("method", "model", "dataset", "bits")
SEED = "Experiment.seed"
WORDS = 2  # settings in the label of a group
NONE = "-"  # stands for what a run does not have


@dataclass(frozen=True)
class Group:
    """Runs with the same values (`key`) of the fields they are grouped by; `label` tells the group from others."""

    key: tuple[str, ...]
    label: str
    runs: list[Run]

    @property
    def finished(self) -> list[Run]:
        """The runs that take part in the means."""
        return [run for run in self.runs if run.finished]

    @property
    def seeds(self) -> int:
        """How many different seeds have finished."""
        return len({value_of(run, "seed") for run in self.finished})

    def values(self, field: str) -> list[float]:
        """Return a field of every finished run that has it."""
        return [run.fields[field] for run in self.finished if is_number(run.fields.get(field))]

    def mean(self, field: str) -> float | None:
        """Return the mean of a field over the finished runs."""
        return _mean(self.values(field))

    def spread(self, field: str) -> float | None:
        """Sample standard deviation of a field over the finished runs; None for fewer than two."""
        values = self.values(field)
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def metric(self) -> Metric:
        """The metric by which its runs are judged."""
        return Metric.of(self.runs[0].fields)

    def best(self) -> float | None:
        """Return the best test figure of a run."""
        values = self.values(f"test_{self.metric.name}")
        return (max if self.metric.higher else min)(values, default=None)

    def entropy(self) -> float | None:
        """Return the mean over the finished runs of the last recorded entropy, in bits per weight."""
        ends = [run.series("entropy")[1][-1:] for run in self.finished]
        return _mean([value for end in ends for value in end])

    def kib(self) -> float | None:
        """Return the size of the parameters in KiB: `bits` for a labelled one, 32 for the others."""
        return _mean([size for run in self.runs if (size := _kib(run.fields)) is not None])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _kib(fields: dict[str, Any]) -> float | None:
    parameters, bits = fields.get("parameters"), fields.get("bits")
    labelled = fields.get("labelled", parameters)
    if not (is_number(parameters) and is_number(bits) and is_number(labelled)):
        return None
    return (labelled * bits + (parameters - labelled) * 32) / 8 / 1024


def group_runs(runs: Sequence[Run], by: Sequence[str] | None = None) -> list[Group]:
    """Return the groups of `runs`, best on validation first; by the whole configuration but the seed by default."""
    names = DEFAULT_BY if by is None else tuple(by)
    for name in names if by is not None else ():
        _check_known(name, runs)
    # Figures of stand-in data mean nothing, and those of different metrics not the same: they are never averaged.
    keyed: dict[tuple[tuple[str, ...], bool, str, tuple[str, ...]], list[Run]] = {}
    for run in runs:
        key = tuple(value_of(run, n) for n in names), bool(run.fields.get("stand_in")), Metric.of(run.fields).name, ()
        keyed.setdefault(key, []).append(run)
    if by is None:
        keyed = {(*key[:3], extra): some for key, all_ in keyed.items() for extra, some in _by_settings(all_).items()}
    varies = [len(set(column)) > 1 for column in zip(*(key[0] for key in keyed), strict=True)]
    varies[0] = varies[0] or not any(varies)
    groups = []
    for (values, stand_in, _, extra), members in keyed.items():
        words = [_word(n, value, runs) for n, value, differs in zip(names, values, varies, strict=True) if differs]
        label = " ".join([*words, *extra]) + (" (stand-in data)" if stand_in else "")
        groups.append(Group(values, label, members))
    return sorted(groups, key=lambda g: (_place(g), g.key))


def _place(group: Group) -> tuple[str, list[float]]:
    """Return where a group stands in the order: metrics apart, the best on validation first, then the best on test.

    Test figures choose nothing, or they would be none. Groups without a figure come last.
    """
    metric = group.metric
    means = [group.mean(f"{split}_{metric.name}") for split in ("best_val", "test")]
    return metric.name, [float("inf") if mean is None else -mean if metric.higher else mean for mean in means]


def _by_settings(runs: Sequence[Run]) -> Mapping[tuple[str, ...], list[Run]]:
    """Return the runs of equal settings, keyed by words for what tells them apart."""
    shared = shared_differing_settings(runs)
    apart: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        apart.setdefault(tuple(run.settings.get(name, NONE) for name in shared), []).append(run)
    if len(apart) <= 1:
        return {(): list(runs)}
    shown = shared[:WORDS]
    words = {
        values: tuple(_word(n, printable(v), runs) for n, v in zip(shown, values, strict=False)) for values in apart
    }
    if len(set(words.values())) < len(apart):  # the first few do not tell all of them apart
        words = {values: (f"settings {number}",) for number, values in enumerate(apart, 1)}
    return {words[values]: some for values, some in apart.items()}


def _word(name: str, value: str, runs: Sequence[Run]) -> str:
    """Return a value in a label; what does not speak for itself comes with its name: 'rho 1.02'."""
    if name == "run" and len({run.path.name for run in runs}) == len(runs):
        return value.rpartition("/")[2]
    if name == "bits" and value != NONE:
        return f"{value} bit" if value == "1" else f"{value} bits"
    return value if name in ("method", "model", "dataset", "run") else f"{name.rpartition('.')[2]} {value}"


def value_of(run: Run, name: str) -> str:
    """Return a summary field or a gin setting of a run as text; 'run' is its folder."""
    if name == "run":
        return run.name
    return printable(as_text(run.fields[name]) if name in run.fields else run.settings.get(name, NONE))


def as_text(value: Any) -> str:
    """Return a value of a summary in a table: text as it is, the rest as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_known(name: str, runs: Sequence[Run]) -> None:
    known = {"run"}.union(*(run.fields for run in runs), *(run.settings for run in runs))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "give fields of summary.json or gin settings as in operative.gin"
        raise BadInput(f"--by {name!r}: no run has it; {hint}")


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the names of the settings that are not the same in all runs; the seed is left out."""
    known = [run.settings for run in runs if run.settings]  # a run without operative.gin says nothing
    names = set().union(*known) - {SEED}
    return sorted((n for n in names if len({settings.get(n) for settings in known}) > 1), key=str.lower)


def shared_differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the differing settings that all runs have: others belong to a part, whose name is a setting, too."""
    known = [run.settings for run in runs if run.settings]
    return [name for name in differing_settings(runs) if all(name in settings for settings in known)]


def setting_values(group: Group, name: str) -> list[str]:
    """Return the different values of a setting within a group: one, as a rule."""
    return sorted({printable(run.settings.get(name, NONE)) for run in group.runs if run.settings})


def check_groups(groups: Sequence[Group], by: Sequence[str] | None, warn: Warn) -> None:
    """Warn of means that are not what they seem: settings or seeds mixed, stand-in data."""
    for group in groups:
        name = group.label
        if by is not None and (mixed := shared_differing_settings(group.runs)):
            shown = ", ".join(mixed[:4]) + (f" and {len(mixed) - 4} more" if len(mixed) > 4 else "")
            hint = ",".join([*by, mixed[0]])
            warn(f"{name} mixes runs of different settings ({shown}); to keep them apart: --by {hint}")
        counted = Counter(value_of(run, "seed") for run in group.finished)
        if twice := sorted(seed for seed, times in counted.items() if times > 1):
            warn(f"{name} has more than one run of seed {', '.join(twice)}; its spread is not that of its seeds")
        if any(run.fields.get("stand_in") for run in group.runs):
            warn(f"{name}: its figures mean nothing")
