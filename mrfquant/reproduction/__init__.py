"""The paper's tables: which runs they consist of, running those, and setting ours beside the paper's figures."""

from mrfquant.reproduction.cells import Campaign, Outcome
from mrfquant.reproduction.paper import overview, picture, table
from mrfquant.reproduction.tables import SCALES, TABLES, Cell, render

__all__ = ["SCALES", "TABLES", "Campaign", "Cell", "Outcome", "overview", "picture", "render", "table"]
