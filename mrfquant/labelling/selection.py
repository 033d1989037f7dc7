"""Which parameters of a network are meant: by the type of the layer that they belong to, or by a preset."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

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

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def weights_of(*types: type[nn.Module]) -> Selection:
    """Select the weights, not the biases, of every layer of these types: `weights_of(nn.Linear, nn.Conv2d)`."""

    def select(model: nn.Module) -> set[str]:
        chosen = {
            id(p)
            for module in model.modules()
            if isinstance(module, types)
            for own, p in module.named_parameters(recurse=False)
            if p.dim() > 1 and not own.startswith("bias")  # attention's have three
        }
        return {name for name, p in model.named_parameters() if id(p) in chosen}

    return select


def everything(model: nn.Module) -> set[str]:
    """Every trainable parameter, biases and norms too, as in the paper."""
    return {name for name, p in model.named_parameters() if p.requires_grad}


weights = weights_of(*PRODUCTS)


def inner_weights(model: nn.Module) -> set[str]:
    """The weights of all layers but the first and the last, in the order in which the network lists them."""
    found = weights(model)
    ordered = [name for name, p in model.named_parameters() if name in found and p.requires_grad]
    return set(ordered[1:-1])


def norms_and_biases(model: nn.Module) -> set[str]:
    """What is usually left out of weight decay: parameters of fewer than two dimensions, and those of norms."""
    of_norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
    return {name for name, p in model.named_parameters() if p.dim() < 2 or id(p) in of_norms}


PRESETS: dict[str, Selection] = {"everything": everything, "weights": weights, "inner weights": inner_weights}
GROUP_PRESETS: dict[str, Selection] = {**PRESETS, "norms and biases": norms_and_biases}
