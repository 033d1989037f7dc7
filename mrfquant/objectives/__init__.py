"""Objectives: the loss of a network, and the figures by which it is judged."""

from mrfquant.objectives.base import Objective, outputs_of
from mrfquant.objectives.classification import CrossEntropy, NextToken
from mrfquant.objectives.distillation import Distillation
from mrfquant.objectives.regression import Regression

__all__ = ["CrossEntropy", "Distillation", "NextToken", "Objective", "Regression", "outputs_of"]
