"""torchao's PARQ in our trainer: the same network, batches, loss and learning rates, another library's quantization."""

import importlib
from typing import Any

import torch

from mrfquant.config.settings import Count, Fraction, configurable
from mrfquant.errors import BadInput

FLOAT = 16  # bits from which on torchao leaves a group as it is


@configurable
class PARQ:
    """A recipe of torchao's `QuantOptimizer` over Adam, for `Reference`.

    Piecewise-affine regularisation, annealed to hard quantization (Jin et al., 2025), with least-squares levels for
    each row.

    Groups of parameters with a setting `quant_bits` are quantized, to as many bits or to three levels for 0:

        Experiment.groups = {'inner weights': {'quant_bits': 1}}

    Weights are on their levels from the share `end` of the run on. Evaluate after that only: earlier networks are no
    quantized ones, and the best on validation is the result.

    Args:
        lr: Adam's learning rate.
        iterations: of the run.
        start: share of the run after which annealing begins.
        end: share of the run after which it is done.
    """

    method = "PARQ"
    by_shape = True  # matrices of rows, each with levels of its own

    def __init__(self, lr: float, iterations: Count, start: Fraction = 0.0, end: Fraction = 0.75) -> None:
        self.lr, self.start, self.end = lr, round(start * iterations), round(end * iterations)

    def __call__(self, parameters: list[Any]) -> torch.optim.Optimizer:
        """Return the optimizer of tensors or of groups of them."""
        try:
            parq = importlib.import_module("torchao.prototype.parq")
        except ImportError:
            raise BadInput("PARQ is torchao's, which is not installed: pip install torchao") from None
        base = torch.optim.Adam(parameters, lr=self.lr)
        base.defaults["quant_bits"] = FLOAT
        for group in base.param_groups:
            for tensor in group["params"]:
                tensor.requires_grad_()  # torchao leaves others alone
        prox = parq.ProxPARQ(self.start, self.end)
        # A step of Adam's own comes first: without it, torchao refuses an optimizer whose state was looked at.
        return parq.QuantOptimizer(base, parq.LSBQuantizer(), prox, warmup_steps=1, quant_per_channel=True)
