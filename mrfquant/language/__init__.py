"""Language models: rounded a block at a time, and written as files that other programs run."""

from mrfquant.language.rounding import RoundedLanguageModel, round_language_model
from mrfquant.language.targets import TARGETS, Target

__all__ = ["TARGETS", "RoundedLanguageModel", "Target", "round_language_model"]
