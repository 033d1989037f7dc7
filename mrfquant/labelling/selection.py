"""Which parameters of a network are meant: by the type of the layer that they belong to, or by a preset."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from torch import Tensor, nn
from torch.nn.utils import parametrize

from mrfquant.labelling.matrices import other_linear

TIED, MATRICES = "tied to", "matrices of"
PARAMETRIZED = "what parametrized weights are computed from"
WARN_LEFT_FRACTION = 0.1  # fraction of the parameters in layers of unknown kinds
# A function from a network to the names of the parameters that it selects.
Selection = Callable[[nn.Module], set[str]]

# Layers whose cost is a product with their weights; embeddings, norms and biases are none.
PRODUCTS = (
    nn.Linear,
    nn.Bilinear,
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def weights_of(*types: type[nn.Module]) -> Selection:
    """Select the weights, not the biases, of every layer of these types: `weights_of(nn.Linear, nn.Conv2d)`.

    With nn.Linear go the linear layers of transformers that are none: `Conv1D` of GPT-2, experts of Mixtral and others.
    A weight that a layer of another type has, too, as a tied embedding, is left out, as are weights that a layer is
    computed from (weight norm) and those of adapters (LoRA).
    """

    def select(model: nn.Module) -> set[str]:
        return {name for name, reason in left_out(model, types).items() if not reason}

    return select


def left_out(model: nn.Module, types: tuple[type[nn.Module], ...]) -> dict[str, str]:
    """Return why each parameter is no weight of a layer of these types; nothing where it is one."""
    adapters = {
        id(inside)
        for module in model.modules()
        if "base_layer" in module._modules
        for name, child in module.named_children()
        if name != "base_layer"
        for inside in child.modules()
    }
    found: dict[int, set[str]] = {}
    for module in model.modules():
        for own, p in module.named_parameters(recurse=False):
            found.setdefault(id(p), set()).add(_reason(module, own, p, types, id(module) in adapters))
    return {name: _joined(found[id(p)]) for name, p in model.named_parameters()}


def _joined(reasons: set[str]) -> str:
    """Return the reason of a parameter that may belong to several layers: a weight is one in all of them."""
    *_, last = sorted(reasons)
    return f"{TIED} {last}" if last and "" in reasons else last


def _reason(module: nn.Module, own: str, p: Tensor, types: tuple[type[nn.Module], ...], adapter: bool) -> str:
    stem = own.rpartition("_")[0]
    if adapter:
        return "adapters"
    if isinstance(module, parametrize.ParametrizationList):
        return PARAMETRIZED
    if stem and stem not in module._parameters and isinstance(getattr(module, stem, None), Tensor):
        return PARAMETRIZED  # weight_g and weight_v of the old weight norm
    if isinstance(module, NORMS):
        return "norms"
    if nn.Linear in types and other_linear(module, own) is not None:
        return ""
    if p.dim() < 2 or own.startswith("bias") or own.endswith("_bias"):  # attention's have three, experts' two
        return "biases and other vectors"
    if isinstance(module, EMBEDDINGS) and not isinstance(module, types):
        return "embeddings"
    return "" if isinstance(module, types) else f"{MATRICES} {type(module).__name__}"


def coverage(
    model: nn.Module, on_levels: Collection[str], types: tuple[type[nn.Module], ...], frozen: Collection[str] = ()
) -> list[str]:
    """Say how many of a network's parameters are on levels, and of what kind the others are, in a line each.

    Args:
        model: the network.
        on_levels: the names of its parameters that are.
        types: of layers whose weights could be.
        frozen: parameters that are not on levels because they are frozen.
    """
    reasons = {name: "frozen" if name in frozen else why for name, why in left_out(model, types).items()}
    return covered({name: (p.numel(), reasons[name]) for name, p in model.named_parameters()}, on_levels)


def covered(parameters: Mapping[str, tuple[int, str]], on_levels: Collection[str]) -> list[str]:
    """Say the same of parameters whose sizes are given, and why they might not be on levels."""
    sizes = {name: size for name, (size, _) in parameters.items()}
    left: Counter[str] = Counter()
    for name, size in sizes.items():
        if name not in on_levels:
            left[parameters[name][1] or "left out by choice"] += size
    total, count = sum(sizes.values()), sum(size for name, size in sizes.items() if name in on_levels)
    lines = [f"{count:,} of {total:,} parameters are on levels, {count / max(1, total):.1%}"]
    return lines + [f"{size:,} are not, {size / total:.1%}: {reason}" for reason, size in left.most_common()]


def everything(model: nn.Module) -> set[str]:
    """Select every trainable parameter, biases and norms too, as in the paper."""
    return {name for name, p in model.named_parameters() if p.requires_grad}


weights = weights_of(*PRODUCTS)


def warn_of_unknown_layers(model: nn.Module, on_levels: Collection[str], types: tuple[type[nn.Module], ...]) -> None:
    """Warn of layers of unknown types, or with weights that are computed, if they hold much of the network."""
    reasons, left = left_out(model, types), Counter[str]()
    for name, p in model.named_parameters():
        if name not in on_levels and reasons[name].startswith((MATRICES, PARAMETRIZED)):
            left[reasons[name]] += p.numel()
    if left.total() > WARN_LEFT_FRACTION * sum(p.numel() for p in model.parameters()):
        warnings.warn(
            f"{left.total():,} parameters stay in float: {', '.join(left)}; Labelling takes layers of other types by "
            "which=mq.weights_of(TYPE, ...), torch.nn.utils.parametrize.remove_parametrizations makes computed weights "
            "ordinary ones",
            stacklevel=4,
        )


def inner_weights(model: nn.Module) -> set[str]:
    """Return the weights of all layers but the first and the last, in the order in which the network lists them."""
    found = weights(model)
    ordered = [name for name, p in model.named_parameters() if name in found and p.requires_grad]
    return set(ordered[1:-1])


def norms_and_biases(model: nn.Module) -> set[str]:
    """Return what weight decay usually leaves out: parameters of fewer than two dimensions, and those of norms."""
    of_norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
    return {name for name, p in model.named_parameters() if p.dim() < 2 or id(p) in of_norms}


PRESETS: dict[str, Selection] = {"everything": everything, "weights": weights, "inner weights": inner_weights}
GROUP_PRESETS: dict[str, Selection] = {**PRESETS, "norms and biases": norms_and_biases}
