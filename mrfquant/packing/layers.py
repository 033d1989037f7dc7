"""Layers that keep their weights packed and compute from the bytes, for evaluation.

Float weights exist only a tile at a time: as many rows (output channels) as `tile_bytes` allow, at least one; on other
devices than the CPU, where starting an operation costs more than memory, a whole layer at a time. Results
equal those of the float layer to float32 rounding, and to the bit where the whole layer is one tile. A `PackedLinear`
on few vectors needs no tiles at all where numba is installed: see `mrfquant.kernels.packed`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from mrfquant.errors import BadInput
from mrfquant.kernels import packed as kernel
from mrfquant.packing.parameter import PackedParameter, in_columns

Pair = int | tuple[int, ...]
TILE_BYTES, SMALLEST_TILE = 2**20, 2**14
FEW = 4  # vectors for each label in a byte: up to so many, the product with bytes beats unpacking
EVEN = 8  # rows; a convolution is fastest on multiples


class PackedLayer(nn.Module):
    """What packed layers share: the bytes, and unpacking a tile of rows.

    Labels are encoded anew so that every row starts a byte; `tile_bytes` is what unpacking may take at a time.
    """

    packed: Tensor
    levels: Tensor
    scale: Tensor | None
    zero: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: PackedParameter, bias: Tensor | None, tile_bytes: int, word: int | None = None) -> None:
        super().__init__()
        self.shape, self.tile_bytes = weight.shape, tile_bytes
        labels = weight.labels().flatten(1)
        self.columns, self.group_size = labels.shape[1], weight.group_size
        self.register_buffer("packed", kernel.pack_rows(labels, len(weight.levels), word))
        self.register_buffer("levels", torch.tensor(weight.levels, dtype=torch.float32))
        self.register_buffer("scale", None if weight.scale is None else weight.scale.detach().clone())
        self.register_buffer("zero", None if weight.zero is None else weight.zero.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @property
    def weight(self) -> Tensor:
        """All of the float weights, to look at; `forward` does not ask for them."""
        return self.rows(0, self.shape[0], kernel.byte_values(self.levels))

    @property
    def nbytes(self) -> int:
        """Bytes that the layer keeps."""
        return sum(buffer.nbytes for buffer in self.buffers())

    @property
    def tile_nbytes(self) -> int:
        """The most bytes that unpacking takes at a time."""
        return self._table_nbytes + self._row_nbytes * max(stop - start for start, stop in self.tiles())

    def tiles(self) -> list[tuple[int, int]]:
        """First row and end of every tile."""
        rows, step = self.shape[0], self._step()
        return [(start, min(start + step, rows)) for start in range(0, rows, step)]

    def rows(self, start: int, stop: int, values: Tensor) -> Tensor:
        """Return the float weights of some rows, by the table of `kernel.byte_values`."""
        weights = kernel.unpack_rows(self.packed[:, start:stop], self.columns, values)
        if self.scale is not None:
            weights.mul_(self._of_rows(self.scale, start, stop))
        if self.zero is not None:
            weights.add_(self._of_rows(self.zero, start, stop))
        return weights.reshape(-1, *self.shape[1:])

    def _of_rows(self, scale: Tensor, start: int, stop: int) -> Tensor:
        """Return the scales or zero points of some rows, in a shape that broadcasts with them."""
        if self.group_size is None:
            return scale.expand(self.shape[0])[start:stop, None]
        return in_columns(scale[start:stop], self.group_size, self.columns)

    def extra_repr(self) -> str:
        return f"{self.shape}, levels={self.levels.tolist()}, bias={self.bias is not None}, {self.nbytes} bytes"

    def _step(self) -> int:
        """Return the number of rows of a tile."""
        if self.packed.device.type != "cpu":
            return self.shape[0]
        fit = max(1, (self.tile_bytes - self._table_nbytes) // self._row_nbytes)
        return self.shape[0] if fit >= self.shape[0] else max(fit - fit % EVEN, min(fit, EVEN))

    @property
    def _table_nbytes(self) -> int:
        """Bytes of `kernel.byte_values`."""
        return 256 * kernel.labels_per_byte(len(self.levels)) * self.levels.itemsize

    @property
    def _row_nbytes(self) -> int:
        """Return what a row takes while it is unpacked: bytes, indices, weights (twice for convolutions), scales."""
        width = self.packed.shape[0] * self.packed.shape[2]
        weights = width * kernel.labels_per_byte(len(self.levels))
        copied = self.columns if len(self.shape) > 2 and weights > self.columns else 0
        scales = 0 if self.scale is None or self.group_size is None else self.scale.shape[1] * self.group_size
        return 5 * width + self.levels.itemsize * (weights + max(copied, scales))

    def _bias(self, start: int, stop: int) -> Tensor | None:
        return None if self.bias is None else self.bias[start:stop]


class PackedLinear(PackedLayer):
    """nn.Linear with packed weights (outputs, inputs)."""

    def __init__(self, weight: PackedParameter, bias: Tensor | None = None, tile_bytes: int = TILE_BYTES) -> None:
        super().__init__(weight, bias, tile_bytes, kernel.WORD)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) to (..., outputs)."""
        if self._few(x):
            return self._product(x)
        values = kernel.byte_values(self.levels)
        parts = [functional.linear(x, self.rows(a, b, values), self._bias(a, b)) for a, b in self.tiles()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _few(self, x: Tensor) -> bool:
        """Return whether the product with bytes can be used and is the faster way."""
        many = x.numel() > FEW * kernel.labels_per_byte(len(self.levels)) * self.columns
        if many or self.group_size is not None or kernel.compiled() is None:
            return False
        plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (x, self.levels))
        traced = torch.jit.is_tracing() or torch.compiler.is_compiling()
        recorded = torch.is_grad_enabled() and x.requires_grad
        return plain and x.shape[-1] == self.columns and not traced and not recorded

    def _product(self, x: Tensor) -> Tensor:
        out = kernel.product(x.reshape(-1, self.columns), self.packed, self.levels)
        if self.scale is not None:
            out.mul_(self.scale)
        if self.zero is not None:
            out.add_(x.reshape(-1, self.columns).sum(1, keepdim=True) * self.zero)
        if self.bias is not None:
            out.add_(self.bias)
        return out.view(*x.shape[:-1], self.shape[0])


class PackedConv2d(PackedLayer):
    """nn.Conv2d with packed weights (outputs, inputs / groups, height, width)."""

    def __init__(
        self,
        weight: PackedParameter,
        bias: Tensor | None = None,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        tile_bytes: int = TILE_BYTES,
    ) -> None:
        super().__init__(weight, bias, tile_bytes)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.padding_mode = padding_mode

    def forward(self, x: Tensor) -> Tensor:
        """x (b, inputs, height, width), or one without b, to as many outputs."""
        if x.dim() == 3:
            return self(x[None])[0]
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = functional.pad(x, self._borders(), self.padding_mode), 0
        values, tiles = kernel.byte_values(self.levels), self.tiles()
        if len(tiles) == 1:
            return self._convolved(x, *tiles[0], values, padding)
        if x.device.type == "cpu":  # the layout that a convolution with few outputs need not change every time
            x = x.contiguous(memory_format=torch.channels_last)
        return torch.cat([self._convolved(x, a, b, values, padding) for a, b in tiles], 1).contiguous()

    def _convolved(self, x: Tensor, start: int, stop: int, values: Tensor, padding: Pair | str) -> Tensor:
        """Return the outputs of a tile, which is part of a group or some whole groups."""
        outputs, inputs = self.shape[0] // self.groups, self.shape[1]
        first, groups = start // outputs, -(-(stop - start) // outputs)
        x = x if groups == self.groups else x.narrow(1, first * inputs, groups * inputs)
        weights, bias = self.rows(start, stop, values), self._bias(start, stop)
        return functional.conv2d(x, weights, bias, self.stride, padding, self.dilation, groups)

    def tiles(self) -> list[tuple[int, int]]:
        """First channel and end of every tile; none has parts of two groups."""
        outputs, step = self.shape[0] // self.groups, self._step()
        if step >= outputs:
            step -= step % outputs
            return [(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step)]
        groups = range(0, self.shape[0], outputs)
        return [(a, min(a + step, group + outputs)) for group in groups for a in range(group, group + outputs, step)]

    def _borders(self) -> list[int]:
        """Return what to pad left, right, above and below."""
        borders = []
        for i in (1, 0):
            reach = _pair(self.dilation)[i] * (self.shape[2 + i] - 1)
            if self.padding == "same":
                borders += [reach // 2, reach - reach // 2]
            else:
                borders += [0 if isinstance(self.padding, str) else _pair(self.padding)[i]] * 2
        return borders


class Unpacking(nn.Module):
    """A parametrization, as in `torch.nn.utils.parametrize`: float weights, made anew whenever they are read."""

    def __init__(self, held: PackedLayer) -> None:
        super().__init__()
        self.held = held

    def forward(self, nothing: Tensor) -> Tensor:
        """Return the weights; what is kept in their place is empty."""
        return self.held.weight

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return what is kept in the weights' place."""
        return weight.new_empty(0)


def pack_layers(model: nn.Module, packed: Mapping[str, PackedParameter]) -> nn.Module:
    """Keep the parameters in `packed` as bytes, in place; the model in eval mode.

    Every nn.Linear and nn.Conv2d is replaced by one that computes a tile at a time. In modules of other classes (other
    convolutions, attention, LSTM, embeddings, your own), matrices and the like are unpacked whenever they are read.
    Names are those of `model.named_parameters()`; other parameters stay as they are. Tiles are chosen so that the
    packed layers and the largest tile take at most 1/16 of the float layers' memory, and a tile at most 1/32, but for
    networks so small that it does not matter: a tile may always take 16 KB. Labels of more than about 1.75 bits take
    more than 1/16 alone; then a tile takes 1/32. On other devices than the CPU a layer is one tile.
    """
    weights = {id(p): packed[name] for name, p in model.named_parameters() if name in packed}
    layers = {
        name: layer
        for name, layer in model.named_modules(remove_duplicate=False)
        if (type(layer) is nn.Linear or type(layer) is nn.Conv2d) and id(layer.weight) in weights
    }
    made = {id(layer): _packed_layer(name, layer, weights[id(layer.weight)]) for name, layer in layers.items()}
    whole = sum({id(p): p.nbytes for layer in layers.values() for p in layer.parameters()}.values())
    left = whole // 16 - sum(layer.nbytes for layer in made.values())
    share = min(left, whole // 32) if left >= whole // 128 else whole // 32
    for packed_layer in made.values():
        packed_layer.tile_bytes = max(share, SMALLEST_TILE)
    for name, layer in layers.items():
        if not name:
            return made[id(layer)].eval()
        model.set_submodule(name, made[id(layer)])
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
        held = PackedLayer(weight, None, SMALLEST_TILE).to(parameter.device, parameter.dtype)
        parametrize.register_parametrization(module, name, Unpacking(held), unsafe=True)  # of another shape
    if found and isinstance(module, nn.RNNBase):  # it keeps a list of its weights
        module.register_forward_pre_hook(_list_weights)
        module.register_forward_hook(_forget_weights)
        _forget_weights(module)


def _list_weights(module: nn.RNNBase, *_: Any) -> None:
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def _forget_weights(module: nn.RNNBase, *_: Any) -> None:
    module._flat_weights = []


def _packed_layer(name: str, layer: nn.Linear | nn.Conv2d, weight: PackedParameter) -> PackedLayer:
    """Return the packed form of a layer, on its device."""
    if weight.shape != tuple(layer.weight.shape):
        raise BadInput(f"{name} has weights of shape {tuple(layer.weight.shape)}, packed are {weight.shape}")
    if isinstance(layer, nn.Linear):
        made: PackedLayer = PackedLinear(weight, layer.bias)
    else:
        made = PackedConv2d(
            weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode
        )
    return made.to(layer.weight.device, layer.weight.dtype)


def _pair(size: Pair) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else size
