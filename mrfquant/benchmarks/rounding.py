"""Rounding solvers: a layer's energy against the seconds that it takes."""

from collections.abc import Iterator

import torch

from mrfquant.benchmarks.timing import Options, Row
from mrfquant.rounding import LayerProblem, LayerSolver
from mrfquant.rounding.solvers import RoundGPTQ, RoundICM, RoundMeanField, RoundNearest, RoundTree

SIZES = ((576, 576), (1536, 576))  # inputs, rows: the layers of a small language model
INPUTS, RANK, BITS, DAMPING = 4096, 8, 2, 0.01


def measure_rounding(options: Options) -> Iterator[tuple[str, Row]]:
    """Time every solver on two layers of two bits with correlated, positive inputs, against gptq."""
    for n, rows in SIZES:
        problem = _layer(n, rows)
        first: tuple[float, float] | None = None
        for name, solver in _solvers().items():
            solver.solve(problem.rows(torch.arange(2)))  # compiles
            began = options.now()
            labels, fitted = solver.solve(problem)
            seconds, energy = options.now() - began, fitted.energy(fitted.values(labels)).sum().item()
            first = first or (seconds, energy)
            row: Row = {"seconds": seconds, "time / gptq": seconds / first[0], "energy / gptq": energy / first[1]}
            yield f"{n} x {rows}, {name}", row


def _solvers() -> dict[str, LayerSolver]:
    """Return the solvers by their names in the table; gptq first."""
    found: dict[str, LayerSolver] = {"gptq": RoundGPTQ(), "nearest": RoundNearest()}
    found["gptq, best order and scales"] = RoundGPTQ(RoundICM().scales, by_activation=True)
    found |= {f"icm, {kicks} kicks": RoundICM(kicks=kicks) for kicks in (0, 10, 50, 200)}
    found |= {f"mean_field, {sweeps} sweeps": RoundMeanField(sweeps=sweeps) for sweeps in (10, 40)}
    return found | {"tree": RoundTree()}


def _layer(n: int, rows: int) -> LayerProblem:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(INPUTS, n // RANK, generator=generator) @ torch.randn(n // RANK, n, generator=generator)
    x = (mixed / (n // RANK) ** 0.5 + torch.randn(INPUTS, n, generator=generator)).relu()
    x *= (torch.randn(n, generator=generator) / 2).exp()
    a = x.T @ x / INPUTS
    a.diagonal().add_(DAMPING * a.diagonal().mean())
    return LayerProblem.from_weights(torch.randn(n, rows, generator=generator), a, torch.linspace(-1, 1, 2**BITS))
