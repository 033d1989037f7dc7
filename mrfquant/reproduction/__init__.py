"""The paper's tables: which runs they consist of, running those, and setting ours beside the paper's figures."""

from mrfquant.reproduction.cells import Campaign, Outcome
from mrfquant.reproduction.tables import TABLES, Cell, render

__all__ = ["TABLES", "Campaign", "Cell", "Outcome", "render"]
