"""Evaluation with packed weights against the same in float: time, and what the weights take in memory."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator

import torch
from torch import nn

from mrfquant.benchmarks.timing import Options, Row, in_turns, ratios
from mrfquant.models import LeNet5, ResNet
from mrfquant.packing.layers import PackedLayer, pack_layers
from mrfquant.packing.parameter import PackedParameter

LEVELS = (-1.0, 1.0)
SIZE, BATCH = 4096, 64


def measure_packed(options: Options, width: float = 1.0) -> Iterator[tuple[str, Row]]:
    """Linear maps and networks, each as in `measure_evaluation`, and `measure_peers`; `width` is ResNet-18's."""
    linear, lenet = functools.partial(nn.Linear, SIZE, SIZE), functools.partial(LeNet5, (1, 28, 28), 10)
    resnet = functools.partial(ResNet, (3, 32, 32), 10, width=width)
    cases: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        f"linear {SIZE}, batch 1": (linear, (1, SIZE)),
        f"linear {SIZE}, batch {BATCH}": (linear, (BATCH, SIZE)),
        f"lenet5 from bits, batch {BATCH}": (lenet, (BATCH, 1, 28, 28)),
        f"resnet18 from bits, batch {BATCH}": (resnet, (BATCH, 3, 32, 32)),
    }
    yield from ((name, measure_evaluation(*case, options)) for name, case in cases.items())
    if options.peers:
        from mrfquant.benchmarks.packed_peers import measure_peers

        yield from measure_peers(options)


@torch.no_grad()
def measure_evaluation(build: Callable[[], nn.Module], shape: tuple[int, ...], options: Options) -> Row:
    """Milliseconds of a float evaluation with weights on two levels, and packed time and memory as ratios to float."""
    torch.manual_seed(0)
    model, images = build().eval(), torch.randn(shape)
    weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
    for p in weights.values():
        p.copy_(torch.where(p < 0, *LEVELS))
    packed = pack_layers(copy.deepcopy(model), {name: PackedParameter.of(p, LEVELS) for name, p in weights.items()})
    whole = sum(p.nbytes for p in model.parameters())
    times = in_turns({"float": lambda: model(images), "packed": lambda: packed(images)}, options)
    return {
        **ratios(times),
        "kept": {"ratio": _kept(packed) / whole},
        "kept and unpacked": {"ratio": (_kept(packed) + _largest_tile(packed)) / whole},
    }


def _kept(packed: nn.Module) -> int:
    """Bytes of the packed layers and of the parameters beside them."""
    return sum(layer.nbytes for layer in _layers(packed)) + sum(p.nbytes for p in packed.parameters())


def _largest_tile(packed: nn.Module) -> int:
    return max(layer.tile_nbytes for layer in _layers(packed))


def _layers(packed: nn.Module) -> list[PackedLayer]:
    return [layer for layer in packed.modules() if isinstance(layer, PackedLayer)]
