"""Layers that keep their weights packed in memory, for evaluation.

A weight is kept as bytes and made float when it is read: of a linear layer some rows at a time, of other layers all of
it. Results are those of the float layers to rounding. A linear layer on few vectors needs no float weights at all where
numba is installed: see `mrfquant.kernels.packed`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from mrfquant.errors import BadInput
from mrfquant.kernels import packed as kernel
from mrfquant.packing.chains import on_levels
from mrfquant.packing.file import Packed
from mrfquant.packing.parameter import PackedParameter, in_columns

TILE_WEIGHTS = 2**17  # weights of a linear layer that are float at a time on the CPU
FEW = 4  # vectors for each label in a byte: up to so many, the product with bytes beats unpacking


class PackedWeight(nn.Module):
    """A weight as bytes: a parametrization, as in `torch.nn.utils.parametrize`, that unpacks it whenever it is read.

    Labels are encoded anew so that every row starts a byte; `word` is the number of bytes that are read at once.
    """

    packed: Tensor
    levels: Tensor
    scale: Tensor | None
    zero: Tensor | None

    def __init__(self, weight: PackedParameter, word: int | None = None) -> None:
        super().__init__()
        labels = weight.matrix.in_rows(weight.labels()).flatten(1)
        self.shape, self.columns, self.group_size = weight.rows, labels.shape[1], weight.group_size
        self.whole, self.matrix = weight.shape, weight.matrix
        self.register_buffer("packed", kernel.pack_rows(labels, len(weight.levels), word))
        self.register_buffer("levels", torch.tensor(weight.levels, dtype=torch.float32))
        self.register_buffer("scale", None if weight.scale is None else weight.scale.detach().clone())
        self.register_buffer("zero", None if weight.zero is None else weight.zero.detach().clone())

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the float weights of some rows."""
        weights = kernel.unpack_rows(self.packed[:, start:stop], self.columns, kernel.byte_values(self.levels))
        if self.scale is not None:
            weights.mul_(self._of_rows(self.scale, start, stop))
        if self.zero is not None:
            weights.add_(self._of_rows(self.zero, start, stop))
        return weights.reshape(-1, *self.shape[1:])

    def forward(self, nothing: Tensor) -> Tensor:
        """Return the float weights; what the module keeps in their place is empty."""
        return self.matrix.back(self.rows(0, self.shape[0]), self.whole)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return what the module keeps in the weights' place."""
        return weight.new_empty(0)

    def extra_repr(self) -> str:
        return f"{self.shape}, levels={self.levels.tolist()}, {sum(buffer.nbytes for buffer in self.buffers())} bytes"

    def _of_rows(self, scale: Tensor, start: int, stop: int) -> Tensor:
        """Return the scales or zero points of some rows, in a shape that broadcasts with them."""
        if self.group_size is None:
            return scale.expand(self.shape[0])[start:stop, None]
        return in_columns(scale[start:stop], self.group_size, self.columns)


class PackedLinear(nn.Module):
    """nn.Linear with packed weights (outputs, inputs)."""

    bias: nn.Parameter | None  # others look for a parameter to see where a network is

    def __init__(self, weight: PackedParameter, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weights = PackedWeight(weight, kernel.WORD)
        own = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.register_parameter("bias", own)

    @property
    def weight(self) -> Tensor:
        """All of the float weights, to look at; `forward` does not ask for them."""
        return self.weights.rows(0, self.weights.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., inputs) to (..., outputs)."""
        if self._few(x):
            return self._product(x)
        rows, columns = self.weights.shape
        step = max(1, TILE_WEIGHTS // columns) if x.device.type == "cpu" else rows  # elsewhere operations cost more
        tiles = [functional.linear(x, self.weights.rows(a, min(a + step, rows))) for a in range(0, rows, step)]
        out = tiles[0] if len(tiles) == 1 else torch.cat(tiles, -1)
        return out if self.bias is None else out + self.bias

    def _few(self, x: Tensor) -> bool:
        """Return whether the product with bytes can be used and is the faster way."""
        levels, columns = self.weights.levels, self.weights.columns
        many = x.numel() > FEW * kernel.labels_per_byte(len(levels)) * columns
        if many or self.weights.group_size is not None or kernel.compiled() is None:
            return False
        plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (x, levels))
        traced = torch.jit.is_tracing() or torch.compiler.is_compiling()
        recorded = torch.is_grad_enabled() and x.requires_grad
        return plain and x.shape[-1] == columns and not traced and not recorded

    def _product(self, x: Tensor) -> Tensor:
        """Return the outputs, computed from bytes."""
        weights, vectors = self.weights, x.reshape(-1, self.weights.columns)
        out = kernel.product(vectors, weights.packed, weights.levels)
        if weights.scale is not None:
            out.mul_(weights.scale)
        if weights.zero is not None:
            out.add_(vectors.sum(1, keepdim=True) * weights.zero)
        if self.bias is not None:
            out.add_(self.bias)
        return out.view(*x.shape[:-1], weights.shape[0])


def pack_layers(model: nn.Module, packed: Mapping[str, Packed]) -> nn.Module:
    """Keep the parameters in `packed` as bytes, in place; return the model in eval mode.

    Every nn.Linear is replaced by a `PackedLinear`. In other modules (convolutions, attention, LSTM, embeddings, your
    own), matrices and the like are unpacked whenever they are read. Names are those of `model.named_parameters()`;
    other parameters stay as they are.
    """
    weights: dict[int, PackedParameter] = {}
    for name, parameter in model.named_parameters():
        if name in packed and packed[name].shape != tuple(parameter.shape):
            raise BadInput(f"{name} has the shape {tuple(parameter.shape)}, packed is {packed[name].shape}")
        if name in packed:
            weights[id(parameter)] = on_levels(name, packed[name], "be computed with as bytes")
    made: dict[nn.Module, nn.Module] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Linear and id(layer.weight) in weights:
            if layer not in made:
                new = PackedLinear(weights[id(layer.weight)], layer.bias)
                made[layer] = new.to(layer.weight.device, layer.weight.dtype)
            if not name:
                return made[layer].eval()
            model.set_submodule(name, made[layer])
    for module in list(model.modules()):
        _unpack_when_read(module, weights)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained = _refuse_to_save  # type: ignore[assignment]
    return model.eval()


def _refuse_to_save(*_: Any, **__: Any) -> None:
    """Stands in the place of transformers' method: what it writes would be loaded with random weights."""
    raise BadInput("packed layers have no float weights to save: save the network first, or write PackedNetwork.write")


def _unpack_when_read(module: nn.Module, weights: Mapping[int, PackedParameter]) -> None:
    """Keep those of a module's own parameters as bytes that have rows."""
    own = dict(module.named_parameters(recurse=False))
    found = {name: weights[id(p)] for name, p in own.items() if id(p) in weights and p.dim() > 1}
    for name, weight in found.items():
        parameter = own[name].requires_grad_(False)
        unpacking = PackedWeight(weight).to(parameter.device, parameter.dtype)
        parametrize.register_parametrization(module, name, unpacking, unsafe=True)  # of another shape
    if found and isinstance(module, nn.RNNBase):  # it keeps a list of its weights
        module.register_forward_pre_hook(_list_weights)
        module.register_forward_hook(_forget_weights)
        _forget_weights(module)


def _list_weights(module: nn.RNNBase, *_: Any) -> None:
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def _forget_weights(module: nn.RNNBase, *_: Any) -> None:
    module._flat_weights = []
