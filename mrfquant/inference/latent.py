"""Baselines that keep latent weights instead of a distribution.

BinaryConnect, ProxQuant and straight-through training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mrfquant.config.settings import Count, Fraction, Positive, configurable
from mrfquant.errors import BadInput, BadSetting
from mrfquant.inference.base import Inference, OptimizerRecipe
from mrfquant.labelling import Block, Labelling, Trellis

MIN_SCALE = 1e-5  # scale of latent weights that are all 0


class LatentInference(Inference):
    """Variables are latent weights (m,), in units of the levels (before scales); they round to the nearest level."""

    by_weight = True

    def bind(self, start: str) -> None:
        if any(isinstance(block.levels, Trellis) for block in self.labelling.blocks):
            raise BadInput(
                f"{type(self).__name__} rounds each weight by itself, and labels of a trellis are paths: take "
                "MirrorDescent, or levels"
            )

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        x = draw()
        if block.d == 2:
            return block.levels.middle + x
        # Small weights would all round to the same level: spread them over all of them.
        return block.levels.middle + x * (block.levels.half_gap / x.abs().max())

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        return w

    def update(self, block: Block, x: Tensor) -> Tensor | None:
        """Return the gradient of the loss, straight through the map from latent weights to weights."""
        return block.scaled(block.g)

    def labels(self, block: Block, x: Tensor) -> Tensor:
        return block.nearest(x)

    @staticmethod
    def clip(block: Block, x: Tensor) -> None:
        """Keep the latent weights within the range of the levels."""
        x.clamp_(block.levels.values[0], block.levels.values[-1])


@configurable(supplied=["labelling", "optimizer"])
class BinaryConnect(LatentInference):
    """BC: the network computes with the rounded weights, the latent ones are clipped (Courbariaux et al., 2015)."""

    method = "BC"
    relaxed = False
    by_weight = True

    def __init__(self, labelling: Labelling, optimizer: OptimizerRecipe, **settings: Any) -> None:
        super().__init__(labelling, optimizer, **settings)

    def write(self, block: Block, x: Tensor) -> None:
        self.clip(block, x)
        block.write_labels(block.nearest(x))


@configurable(supplied=["labelling", "optimizer"])
class ProxQuant(LatentInference):
    """PQ: after every step each weight is drawn towards its nearest level, ever further (Bai et al., 2019).

    The proximal operator of the W-shaped regulariser moves a weight by at most the learning rate times its strength,
    which is reg_rate times the number of epochs done, and never past its level. After the share `freeze` of the budget
    the weights are rounded and stay; what is not labelled, batch-norm statistics among it, goes on adapting.

    Args:
        reg_rate: growth of the strength per epoch.
        epoch: iterations that count as an epoch.
    """

    method = "PQ"
    by_weight = True

    def __init__(
        self,
        labelling: Labelling,
        optimizer: OptimizerRecipe,
        reg_rate: Positive = 1e-4,
        epoch: Count = 500,
        freeze: Fraction = 0.9,
        **settings: Any,
    ) -> None:
        self.reg_rate, self.epoch, self.freeze = reg_rate, epoch, freeze
        super().__init__(labelling, optimizer, **settings)

    @property
    def frozen(self) -> bool:
        """Whether the weights have been rounded for good."""
        if not self.iteration:
            return False
        if self.budget is None:
            raise BadInput("ProxQuant freezes near the end of the run: set the solver's budget to its number of steps")
        return self.iteration >= self.freeze * self.budget

    def update(self, block: Block, x: Tensor) -> Tensor | None:
        return None if self.frozen else super().update(block, x)

    def write(self, block: Block, x: Tensor) -> None:
        nearest = torch.index_select(block.q, 0, block.nearest(x))
        if self.frozen:
            x.copy_(nearest)
        else:
            reach = self.learning_rate(block) * self.reg_rate * (self.iteration // self.epoch)
            x.add_((nearest - x).clamp_(-reach, reach))
            self.clip(block, x)
        block.scaled(block.w.copy_(x))


@configurable(supplied=["labelling", "optimizer"])
class StraightThrough(LatentInference):
    """STE: the network computes with the levels nearest to its weights, scaled anew at every step to fit them.

    The latent weights are in the network's own units, nothing clips them, and the gradient reaches them as it is. A run
    of weights that share a scale has s = mean |x| / mean |q| over its latent weights x and the levels q that are not 0.
    For the levels -1, 1 these are Binary Weight Networks (Rastegari et al., 2016), for -1, 0, 1 the weights of BitNet
    b1.58 (Ma et al., 2024), clamp(round(x / s), -1, 1) s with s = mean |x|.

    It needs `Labelling.scale` to be 'layer', 'channel' or 'group'. A random start draws in the network's units, too.
    """

    method = "STE"
    relaxed = False

    def __init__(self, labelling: Labelling, optimizer: OptimizerRecipe, **settings: Any) -> None:
        if labelling.blocks and (labelling.scales is None or labelling.scales.sharing is None):
            raise BadInput("StraightThrough fits scales: set Labelling.scale to 'layer', 'channel' or 'group'")
        super().__init__(labelling, optimizer, **settings)
        if self.learned_scales is not None:
            raise BadSetting("Experiment.learn_scale", True, "False for StraightThrough, which fits the scales itself")

    def start(self, block: Block, draw: Callable[[], Tensor]) -> Tensor:
        return draw()

    def start_at(self, block: Block, w: Tensor) -> Tensor:
        return block.w.clone()  # exactly; w is in units of the levels

    def update(self, block: Block, x: Tensor) -> Tensor | None:
        return block.g

    def write(self, block: Block, x: Tensor) -> None:
        scales = self.labelling.scales
        assert scales is not None
        magnitudes = [abs(q) for q in block.levels.values if q]
        fitted = scales.average(x, block.start, of=torch.abs) / (sum(magnitudes) / len(magnitudes))
        scales.set(fitted.clamp_(min=MIN_SCALE), block.start)
        block.write_labels(self.labels(block, x))

    def labels(self, block: Block, x: Tensor) -> Tensor:
        assert block.scales is not None
        return block.nearest(block.scales.divide(x.clone()))
