"""What a network is trained for: the loss, and the figures by which it is judged."""

from mrfquant.objectives.base import Objective
from mrfquant.objectives.classification import CrossEntropy
from mrfquant.objectives.regression import Regression
from mrfquant.objectives.text import NextToken

__all__ = ["CrossEntropy", "NextToken", "Objective", "Regression"]
