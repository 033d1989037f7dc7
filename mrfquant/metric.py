"""A figure by which networks are judged: its name in files, how people read it, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

LARGEST = 1e100  # largest figure: beyond float32, with finite means and variances


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether it is a number to compute with: no bool, finite, not absurdly large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


@dataclass(frozen=True)
class Metric:
    """One figure of an evaluation.

    Attributes:
        name: in summaries, as `test_<name>` and `val_<name>`.
        title: for people.
        higher: whether more is better.
        unit: behind the number.
        digits: after the point.
    """

    name: str
    title: str
    higher: bool
    unit: str = ""
    digits: int = 4

    def better(self, value: float, than: float | None) -> bool:
        """Return whether a value beats another, or there is none yet; what is not a number beats nothing."""
        if not is_number(value):
            return False
        return not is_number(than) or (value > than if self.higher else value < than)

    def number(self, value: float) -> str:
        """Return the value without its unit."""
        return f"{value:,.{self.digits}f}"

    def text(self, value: float) -> str:
        """Return the value for people: '98.10 %'."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def line(self, figures: Mapping[str, float], *others: Metric) -> str:
        """Test figures in a line of a log, this one first: 'test top-1   97.67 %   top-5 100.00 %'."""
        rest = "".join(f"   {m.title} {m.text(figures[m.name])}" for m in others if m.name in figures)
        return f"{'test ' + self.title:<12} {self.text(figures[self.name])}{rest}"

    def of_test(self, summary: Mapping[str, Any]) -> str:
        """Return the test figure of a finished run: 'test top-1 98.10 %'."""
        return f"test {self.title} {self.text(summary[f'test_{self.name}'])}"

    @property
    def head(self) -> str:
        """The title of a column of its numbers: 'top-1 %'."""
        return f"{self.title} {self.unit}".rstrip()

    def as_fields(self) -> dict[str, Any]:
        """Return it as summaries keep it."""
        return asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Metric:
        """Return the metric that chose the best model of a run, from its summary or identity; by default top-1."""
        given = fields.get("metric")
        try:
            found = cls(**given) if isinstance(given, Mapping) else TOP1
        except TypeError:
            return TOP1
        words = all(isinstance(word, str) and word.isprintable() for word in (found.name, found.title, found.unit))
        return found if words and isinstance(found.higher, bool) and found.digits in range(20) else TOP1


TOP1 = Metric("top1", "top-1", higher=True, unit="%", digits=2)
LOSS = Metric("loss", "loss", higher=False)
