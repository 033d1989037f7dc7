"""The comparison as aligned text and as CSV."""

import csv
import io
from collections.abc import Callable, Sequence

from mrfquant.reports.groups import DEFAULT_BY, NONE, Group, as_text, differing_settings, setting_values
from mrfquant.reports.runs import Run
from mrfquant.text import aligned

TEST = "test"
INDENT = "  "


def _number(format: str, value: float | None) -> str:
    return NONE if value is None else format.format(value)


def _test(group: Group) -> str:
    mean, spread = (find(f"test_{group.metric.name}") for find in (group.mean, group.spread))
    return _figure(group, mean) + ("" if spread is None else f" +- {group.metric.number(spread)}")


def _figure(group: Group, value: float | None) -> str:
    return NONE if value is None else group.metric.number(value)


COLUMNS: dict[str, Callable[[Group], str]] = {
    "seeds": lambda g: str(g.seeds),
    TEST: _test,
    "validation": lambda g: _figure(g, g.mean(f"best_val_{g.metric.name}")),
    "best": lambda g: _figure(g, g.best()),
    "steps/s": lambda g: _number("{:,.4g}", g.mean("steps_per_second")),
    "entropy": lambda g: _number("{:.3f}", g.entropy()),
    "KiB": lambda g: _number("{:,.1f}", g.kib()),
    "seconds": lambda g: _number("{:,.0f}", g.mean("seconds")),
}


def test_head(groups: Sequence[Group]) -> str:
    """The head of the column of test figures: 'test top-1 %', or 'test' where the groups have different metrics."""
    heads = {group.metric.head for group in groups}
    return f"{TEST} {heads.pop()}" if len(heads) == 1 else TEST


def result_rows(groups: Sequence[Group], by: Sequence[str] | None) -> list[list[str]]:
    """Return the heads, then a row per group, in their order: number, what it is grouped by, statistics."""
    by = DEFAULT_BY if by is None else by
    metrics = len({group.metric.name for group in groups}) > 1
    short = [name.rpartition(".")[2] for name in by]
    heads = [s if short.count(s) == 1 else name for s, name in zip(short, by, strict=True)]
    return [
        ["#", *heads, *(["metric"] if metrics else []), *(test_head(groups) if c == TEST else c for c in COLUMNS)],
        *(
            [str(i), *g.key, *([g.metric.head] if metrics else []), *(cell(g) for cell in COLUMNS.values())]
            for i, g in enumerate(groups, 1)
        ),
    ]


def setting_rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return the heads, then a row per setting that differs, a column per group."""
    rows = [["", *(f"#{i}" for i in range(1, len(groups) + 1))]]
    for name in differing_settings([run for group in groups for run in group.runs]):
        found = [setting_values(group, name) for group in groups]
        rows.append([name, *(", ".join(values[:3]) + (", ..." if len(values) > 3 else "") for values in found)])
    return rows


def text_report(groups: Sequence[Group], by: Sequence[str] | None, width: int) -> str:
    """Return the whole comparison for a terminal of `width` characters."""
    rows = result_rows(groups, by)
    test = rows[0].index(test_head(groups))
    numbers = {0, *range(test - 1, len(rows[0]))} - {test}  # from the seeds on
    parts = [aligned(rows, right=numbers)]
    if unfinished := [run for group in groups for run in group.runs if not run.finished]:
        lines = aligned([[INDENT + run.name, run.state] for run in unfinished])
        parts.append(f"unfinished, not in the means\n{lines}")
    if len(rows := setting_rows(groups)) > 1:
        layouts = [_blocks(rows, width), _blocks(list(zip(*rows, strict=True)), width)]  # a group a column, or a row
        parts.append("settings that differ\n" + min(layouts, key=lambda text: text.count("\n")))
    return "\n\n".join(parts)


def _blocks(rows: Sequence[Sequence[str]], width: int, longest: int = 32) -> str:
    """Return the settings as one table, or as several one below the other where it is wider than `width`."""
    short = [[cell if len(cell) <= longest else cell[: longest - 3] + "..." for cell in row[1:]] for row in rows]
    names = [INDENT + row[0] for row in rows]
    room = width - max(map(len, names))
    blocks: list[list[tuple[str, ...]]] = [[]]
    used = 0
    for column in zip(*short, strict=True):
        needed = 2 + max(map(len, column))
        if used + needed > room and blocks[-1]:
            blocks.append([])
            used = 0
        blocks[-1].append(column)
        used += needed
    tables = (list(zip(names, *block, strict=True)) for block in blocks)
    return "\n\n".join(aligned(table) for table in tables)


def _cell(text: str) -> str:
    """Return text for a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    text = text.encode(errors="replace").decode()  # half a character has no encoding
    text = " ".join(text.splitlines())  # a line that ends in a cell would begin a row, with a formula
    if not text.lstrip().startswith(("=", "+", "-", "@")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_text(runs: Sequence[Run]) -> str:
    """Return a row per run: its folder and state, all summary fields, the settings that differ."""
    fields = list(dict.fromkeys(name for run in runs for name in run.fields))
    settings = differing_settings(runs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, ["run", "finished", "iteration", *fields, *settings]))
    for run in runs:
        values = [as_text(run.fields[name]) if name in run.fields else "" for name in fields]
        chosen = [run.settings.get(name, "") for name in settings]
        writer.writerow(map(_cell, [run.name, as_text(run.finished), str(run.iteration), *values, *chosen]))
    return text.getvalue()
