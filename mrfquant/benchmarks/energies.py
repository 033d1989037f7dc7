"""What energies cost: a step of PMF with priors or cliques against one with the first-order model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mrfquant.benchmarks.networks import LEVELS, NETWORKS, PMF
from mrfquant.benchmarks.timing import Options, Row, in_turns, ratios
from mrfquant.energies import CodeLength, Energy, FirstOrderTaylor, LabelPrior, SumOf
from mrfquant.inference import ProximalMeanField
from mrfquant.labelling import Labelling
from mrfquant.labelling.block import Form

FORMS: tuple[tuple[int, Form], ...] = ((2, "line"), (3, "line"), (3, "planes"), (4, "line"))
PRIORS: dict[str, Callable[[], Energy]] = {
    "costs of labels": lambda: LabelPrior({1: -1.0}),
    "code length": CodeLength,
}


class WithPrior(PMF):
    """PMF's step with a prior, or another energy, beside the first-order model."""

    def __init__(self, prior: Energy, *how: Any) -> None:
        self.prior = prior
        super().__init__(*how)

    def prepare(self, adam: Callable[..., Any]) -> None:
        energy = SumOf([FirstOrderTaylor(), self.prior], [1.0, 1e-4])
        labelling = Labelling(self.model, LEVELS[self.d])
        self.solver = ProximalMeanField(labelling, adam, energy=energy, form=self.form)


def measure_energies(options: Options) -> Iterator[tuple[str, Row]]:
    """A step with each energy beside the first-order model as a ratio to one without."""
    for name in options.models:
        for d, form in FORMS:
            how = (*NETWORKS[name], d, form)
            sides: dict[str, PMF] = {"first order": PMF(*how)}
            sides |= {called: WithPrior(energy(), *how) for called, energy in PRIORS.items()}
            yield f"{name}, d={d}{', planes' * (form == 'planes')}", ratios(in_turns(sides, options))
