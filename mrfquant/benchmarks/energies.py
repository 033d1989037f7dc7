"""Time a step of PMF with priors or curvature against one with the first-order model alone."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mrfquant.benchmarks.networks import NETWORKS, PMF
from mrfquant.benchmarks.timing import Options, Row, in_turns, ratios
from mrfquant.energies import CodeLength, Energy, FirstOrderTaylor, LabelPrior, PairwiseEnergy, SumOf
from mrfquant.families import Form
from mrfquant.pairwise.curvature import curved_layers, second_moments

FORMS: tuple[tuple[int, Form], ...] = ((2, "line"), (3, "line"), (3, "planes"), (4, "line"))
IMAGES = 250
INTERVAL = 100  # steps from one gathering of second moments to the next, and in a turn
PRIORS: dict[str, Callable[[], Energy]] = {"costs of labels": lambda: LabelPrior({1: -1.0}), "code length": CodeLength}


def measure_energies(options: Options) -> Iterator[tuple[str, Row]]:
    """Time a step with each energy beside the first-order model as a ratio to one without."""
    for name in options.models:
        for d, form in FORMS:
            how = (*NETWORKS[name], d, form)
            sides: dict[str, PMF] = {"first order": PMF(*how)}
            for called, prior in PRIORS.items():
                sides[called] = PMF(*how, energy=SumOf([FirstOrderTaylor(), prior()], [1.0, 1e-4]))
            yield f"{name}, d={d}{', planes' * (form == 'planes')}", ratios(in_turns(sides, options))


def measure_curvature(options: Options) -> Iterator[tuple[str, Row]]:
    """Time second moments against the forward, and 100 steps with both energies, on networks that take no minutes."""
    for name in options.models:
        build, shape = NETWORKS[name]
        if name == "resnet18":
            name, build = "resnet18, width 1/4", functools.partial(build, 0.25)
        elif not name.startswith("lenet"):
            continue
        forward, gather = _forward_and_gathering(build(), torch.randn(IMAGES, *shape[1:]))
        yield f"{name}, statistics", ratios(in_turns({"forward": forward, "second moments": gather}, options))
        if name.startswith("lenet"):
            sides = {"first order": PMF(build, shape, 2)}
            sides["pairwise"] = PMF(build, shape, 2, energy=PairwiseEnergy(interval=INTERVAL))
            steps = {kind: functools.partial(_steps, side) for kind, side in sides.items()}
            yield f"{name}, 100 steps", ratios(in_turns(steps, options))


def _steps(step: Callable[[], None]) -> None:
    for _ in range(INTERVAL):
        step()


def _forward_and_gathering(model: Any, images: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the network's forward, and the second moments of the inputs that its layers had in one."""
    inputs: dict[Any, Tensor] = {}
    hooks = [
        layer.register_forward_hook(lambda layer, given, _: inputs.update({layer: given[0]}))
        for layer in curved_layers(model).values()
    ]
    forward, gather = torch.no_grad()(functools.partial(model.eval(), images)), torch.no_grad()(lambda: _gather(inputs))
    forward()
    for hook in hooks:
        hook.remove()
    return forward, gather


def _gather(inputs: dict[Any, Tensor]) -> None:
    for layer, given in inputs.items():
        second_moments(layer, given, sample_pixels=True)
