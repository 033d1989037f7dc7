"""Rows of layers as they are rounded, written as fields that other programs can solve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mrfquant.mrf import Portfolio, solve
from mrfquant.mrf.from_layer import quadratic_field, qubo_lines
from mrfquant.mrf.uai import write_map, write_model
from mrfquant.rounding import LayerSolver
from mrfquant.storage.files import write_text

if TYPE_CHECKING:
    from mrfquant.rounding import LayerProblem

MAX_VARIABLES = 512  # inputs of a row that is written, since all pairs are factors
SECONDS = 5.0  # for the best energy and bound of each field


class ExportingSolver(LayerSolver):
    """Rounds layers by another solver, and writes rows with the scales that it ends with.

    Args:
        solver: chooses the labels.
        path: FILE.uai; layer k, row r go to FILE-layerK-rowR.uai, with a MAP file, a JSON file of our best energy and
            bound, and for two labels a QUBO file of lines i j coefficient.
        rows: rows of each layer.
    """

    def __init__(self, solver: LayerSolver, path: Path, rows: int) -> None:
        self.name, self.solver, self.path, self.rows = solver.name, solver, path, rows
        self.layers = 0

    def solve(self, problem: LayerProblem) -> tuple[torch.Tensor, LayerProblem]:
        labels, fitted = self.solver.solve(problem)
        self.layers += 1
        for row in range(min(self.rows, labels.shape[1]) if fitted.n <= MAX_VARIABLES else 0):
            self._write(fitted.rows(torch.tensor([row], device=labels.device)), labels[:, row].cpu(), row)
        return labels, fitted

    def _write(self, problem: LayerProblem, labels: torch.Tensor, row: int) -> None:
        field = quadratic_field(problem.a.cpu(), problem.w[:, 0].cpu(), problem.choices()[:, :, 0].cpu())
        result = solve(field, Portfolio, iterations=10**6, seconds=SECONDS)
        if field.energy(labels) < result.energy:
            result.labels, result.energy = labels, field.energy(labels).item()
        stem = self.path.with_name(f"{self.path.stem}-layer{self.layers}-row{row}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_model(f"{stem}.uai", field)
        write_map(f"{stem}.uai.MAP", result.labels.tolist())
        found = {"energy": result.energy, "bound": result.bound, "proved": result.optimal}
        write_text(Path(f"{stem}.json"), json.dumps(found) + "\n")
        if len(problem.levels) == 2:
            write_text(Path(f"{stem}.qubo"), "\n".join(qubo_lines(field)) + "\n")
