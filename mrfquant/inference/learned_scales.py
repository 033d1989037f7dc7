"""Scales that the optimizer moves together with a solver's variables."""

from __future__ import annotations

import torch
from torch import Tensor

from mrfquant.labelling import Labelling


class LearnedScales:
    """Scales s = exp(θ) in w = s u q: the optimizer moves θ, so s stays positive and a step is a relative change.

    The gradient with respect to θ is the sum of g w over the run of weights that share a scale. It is divided by the
    root of the run's length, as in LSQ (Esser et al., 2020), so that it is of the size of a weight's.

    Attributes:
        log: θ (c,), one for each run.
    """

    def __init__(self, labelling: Labelling) -> None:
        assert labelling.scales is not None
        self.labelled, self.scales = labelling.labelled, labelling.scales
        self.log = self.scales.weights.values.log()
        self._averaged: Tensor | None = None  # the gradient, where processes had to average it before it was scattered

    def set_gradient(self) -> None:
        """Set the gradient of θ from that of the weights, when all gradients are there and nothing has moved."""
        known, self._averaged = self._averaged, None
        self.log.grad = self.gradient() if known is None else known

    def apply(self) -> None:
        """Set the scales from θ."""
        self.scales.set(self.log.exp())

    def gradient(self) -> Tensor:
        """Return the gradient with respect to θ: (c,)."""
        g, w = self.labelled.g, self.labelled.w
        return self.scales.average(g * w) * self.scales.lengths.to(w.dtype).sqrt()

    def keep_averaged(self, averaged: Tensor) -> None:
        """Take this gradient at the next step, whatever happens to that of the weights until then."""
        self._averaged = averaged

    @property
    def averaged(self) -> list[Tensor]:
        """The gradient that `keep_averaged` took, if there is one."""
        return [] if self._averaged is None else [self._averaged]

    def reload(self) -> None:
        """Set θ from the scales of the weights, which were just loaded."""
        torch.log(self.scales.weights.values, out=self.log)

    def narrow(self, first: int, last: int) -> Tensor:
        """Return θ of the parameter from `first` to `last` of the labelled vector."""
        return self.log[self.scales.span(first, last)]
