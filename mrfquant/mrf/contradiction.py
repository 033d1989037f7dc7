"""The error for fields whose factors contradict each other."""

from mrfquant.errors import BadInput


class Contradiction(BadInput):
    """No labelling has a probability above 0."""


def contradiction() -> Contradiction:
    """Return the error to raise where no single factor is to blame."""
    return Contradiction("the factors contradict each other: no labelling has a probability above 0")
