"""Colours and dashes of the groups, the same in every figure and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrfquant.reports.curves import Curve

# Okabe and Ito (2008), told apart with every kind of colour vision; orange and sky blue are darkened to a contrast of
# 3 to white, and yellow, which is too faint for a line, is left out.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c08400", "#3a9ad2", "#000000")
# The same hues for a dark ground, kept apart likewise.
DARK = ("#3c8fdb", "#f0702b", "#1fb88a", "#e59ac8", "#f0b429", "#9fd8fa", "#f2f2f2")
# Groups beyond the colours repeat them with the next dash; lengths in line widths, as SVG and matplotlib count them.
DASHES = ((), (4, 1.5), (1, 1.5), (4, 1.5, 1, 1.5))
SHARED = 5  # length of a group's piece of a line that several groups share; page.js has it, too

Dash = tuple[tuple[float, ...], float]  # lengths of strokes and gaps, and how far into them the line starts


def style(number: int) -> tuple[int, tuple[float, ...]]:
    """The colour's number and the dash of a group."""
    return number % len(LIGHT), DASHES[number // len(LIGHT) % len(DASHES)]


def twins(curves: Sequence[tuple[int, bool, Curve]]) -> list[int]:
    """For every curve of a panel, the place of the first one that runs exactly where it does: as a rule, its own."""
    lines = [(thin, curve.iterations.tobytes(), curve.mean.tobytes()) for _, thin, curve in curves]
    return [lines.index(line) for line in lines]


def dashes(curves: Sequence[tuple[int, bool, Curve]]) -> list[Dash]:
    """The dash of every curve of a panel. Curves that coincide, as those of a common schedule, take turns along the
    line, so that none hides the others."""
    firsts = twins(curves)
    chosen: list[Dash] = []
    for place, (number, _, _) in enumerate(curves):
        count, turn = firsts.count(firsts[place]), firsts[:place].count(firsts[place])
        shared = ((SHARED, SHARED * (count - 1)), SHARED * ((count - turn) % count))
        chosen.append(shared if count > 1 else (style(number)[1], 0))
    return chosen
