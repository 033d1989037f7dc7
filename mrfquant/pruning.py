"""Remove channels that are constant, or that nothing reads, with the weights around them.

A channel whose incoming weights are all 0 equals its bias at every pixel, and stays constant under batch norm,
activations and pooling; batch norm whose factor is 0 makes any channel constant. The constant is added to the biases of
the layers that read the channel. A convolution that pads with zeros sees another value beside the border, so there one
channel remains that carries all constants of a layer, and the outputs are the same at the border too.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from mrfquant.errors import BadInput

Layer = nn.Linear | nn.Conv2d
Map = Callable[[Tensor], Tensor]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
POINTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.Sigmoid, nn.Tanh),
    *(nn.Identity, nn.Dropout, nn.Dropout2d),
)
POINTWISE_FUNCTIONS = (
    *(functional.relu, functional.gelu, functional.silu, functional.leaky_relu, functional.relu6),
    *(torch.relu, torch.tanh, torch.sigmoid, "relu", "tanh", "sigmoid"),
)
POOLS = (nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
POOL_FUNCTIONS = (functional.max_pool2d, functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d)


def prune(model: nn.Module) -> nn.Module:
    """Return a copy of a network without constant and unread channels: in eval mode it has the same outputs.

    It follows the outputs of `Linear` and `Conv2d` through batch norm, activations, pooling and flattening to the
    layers that read them. Channels that reach anything else stay, such as the sum of a residual block or the network's
    outputs; so do those of grouped convolutions and of layers that are used twice. Every layer keeps one channel.

    Args:
        model: a network with weights that are exactly 0, as a finalized one has.

    Returns:
        A network of the same class with the same names of parameters, some of them smaller; a layer that reads a
        constant channel may get a bias.

    Raises:
        BadInput: torch.fx cannot trace the network's forward, since it depends on the inputs.
    """
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception as error:
        told = f"the forward of {type(model).__name__} cannot be followed by torch.fx ({str(error).splitlines()[0]})"
        raise BadInput(f"{told}: prune the parts of it that are chains of layers") from None
    model = copy.deepcopy(model)
    if hasattr(model, "arguments"):
        del model.arguments  # it cannot be built from them any more
    modules = _own_modules(model, graph)
    routes = [route for node in modules if (route := _route(modules, node)) is not None]
    with torch.no_grad():
        while sum(_shrink(route) for route in routes):  # a channel less may leave others constant or unread
            pass
    return model


@dataclass
class Reader:
    """A layer that reads the channels of another one."""

    layer: Layer
    way: list[Any]  # the norms and activations that channels pass before
    columns: int  # neighbouring columns of the layer for each channel

    @property
    def pads_with_zeros(self) -> bool:
        """Whether it reads zeros beside the border."""
        if not isinstance(self.layer, nn.Conv2d) or self.layer.padding_mode != "zeros":
            return False
        return self.layer.padding != "valid" and (isinstance(self.layer.padding, str) or any(self.layer.padding))

    def constants(self, values: Tensor) -> Tensor:
        """Return the inputs (c,) here for constant outputs (c,) of the other layer."""
        for step in self.way:
            values = _normalised(step, values) if isinstance(step, NORMS) else step(values)
        return values

    def closed(self) -> Tensor:
        """Return whether a factor 0 of a norm on the way makes the channel constant: (c,)."""
        closed = self.layer.weight.new_zeros(self.layer.weight.shape[1] // self.columns, dtype=torch.bool)
        for norm in self.way:
            if isinstance(norm, NORMS) and norm.weight is not None:
                closed |= norm.weight == 0
        return closed

    def by_channel(self) -> Tensor:
        """Return the weights (outputs, channels, columns), with the pixels of a kernel as columns."""
        weight = self.layer.weight
        return weight.reshape(len(weight), weight.shape[1] // self.columns, -1)

    def fold(self, values: Tensor) -> None:
        """Add the contribution of channels with constant values (c,) to the bias, 0 for those that stay."""
        added = self.by_channel().sum(2) @ values
        if added.any():
            bias = self.layer.bias
            _replace(self.layer, "bias", added if bias is None else bias + added)

    def carry(self, values: Tensor, carrier: int) -> None:
        """Let the channel `carrier` contribute what channels with constant values (c,) do, 0 for the others."""
        weight = self.layer.weight.clone()
        weight[:, carrier] = torch.tensordot(weight, values / values[carrier], ([1], [0]))
        _replace(self.layer, "weight", weight)

    def keep(self, kept: Tensor) -> None:
        """Keep the inputs from these channels."""
        parts = self.layer.weight.unflatten(1, (-1, self.columns)).index_select(1, kept)
        _replace(self.layer, "weight", parts.flatten(1, 2))
        _resize(self.layer, "in", len(kept) * self.columns)


@dataclass
class Route:
    """A layer whose outputs all go to layers that read them channel by channel."""

    layer: Layer
    norms: list[Any] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)

    def keep(self, kept: Tensor) -> None:
        """Keep these channels."""
        for module in (self.layer, *self.norms):
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if tensor.dim():  # not the number of batches
                    _replace(module, name, tensor.index_select(0, kept))
        _resize(self.layer, "out", len(kept))
        for norm in self.norms:
            norm.num_features = len(kept)
        for reader in self.readers:
            reader.keep(kept)


def _shrink(route: Route) -> bool:
    """Remove the channels of a layer that can be removed; return whether there were any."""
    weight, bias = route.layer.weight, route.layer.bias
    unread = torch.stack([(reader.by_channel() == 0).all(2).all(0) for reader in route.readers]).all(0)
    closed = torch.stack([reader.closed() for reader in route.readers]).all(0)
    constant = (weight.flatten(1) == 0).all(1) | closed
    values = torch.where(constant, weight.new_zeros(len(weight)) if bias is None else bias, 0)
    at_readers = [reader.constants(values) for reader in route.readers]
    constant &= torch.stack([found.isfinite() for found in at_readers]).all(0)
    folded = constant & ~unread
    # Constants that some reader cannot add to its bias, and the channel that carries them.
    padded = [found for reader, found in zip(route.readers, at_readers, strict=True) if reader.pads_with_zeros]
    awkward = folded & torch.stack([found != 0 for found in padded]).any(0) if padded else torch.zeros_like(folded)
    carrier = None
    if awkward.any():
        strength = torch.where(awkward, torch.stack([found.abs() for found in padded]).amin(0), -1)
        carrier = int(strength.argmax())
        if strength[carrier] == 0:  # no channel is a constant other than 0 for all of them: they stay
            folded, awkward, carrier = folded & ~awkward, torch.zeros_like(awkward), None
        else:
            folded[carrier] = False
    dropped = unread | folded
    if dropped.all():
        dropped[0] = folded[0] = False
    if not dropped.any():
        return False
    for reader, found in zip(route.readers, at_readers, strict=True):
        if not reader.pads_with_zeros:
            reader.fold(torch.where(folded, found, 0))
        elif carrier is not None:
            reader.carry(torch.where(awkward, found, 0), carrier)
    route.keep((~dropped).nonzero()[:, 0])
    return True


def _route(modules: dict[fx.Node, Any], node: fx.Node) -> Route | None:
    """Follow the outputs of a layer; None for other modules, and for layers whose outputs cannot be followed."""
    layer = modules[node]
    if not _plain(layer):
        return None
    route = Route(layer)
    # The next node, what was passed before it, whether its input has pixels, whether it had them before a flatten.
    ways: list[tuple[fx.Node, list[Any], bool, bool]]
    ways = [(user, [], isinstance(layer, nn.Conv2d), False) for user in node.users]
    while ways:
        node, way, is_map, flattened = ways.pop()
        module: Any = modules.get(node)
        if _plain(module):
            columns, rest = divmod(module.weight.shape[1], len(layer.weight))
            fits = isinstance(module, nn.Conv2d if is_map else nn.Linear)
            if not fits or (columns != 1 and not flattened) or rest:
                return None
            route.readers.append(Reader(module, way, columns))
            continue
        if type(module) in NORMS:
            if is_map != isinstance(module, nn.BatchNorm2d) or flattened or module.running_mean is None:
                return None
            route.norms.append(module)
            way = [*way, module]
        elif (activation := _pointwise(node, module)) is not None:
            way = [*way, activation]
        elif _flattens(node, module):
            flattened, is_map = flattened or is_map, False
        elif is_map and _averages(node):
            is_map = False
        elif not (is_map and _is_pool(node, module)):
            return None
        ways += [(user, way, is_map, flattened) for user in node.users]
    return route if route.readers else None


def _own_modules(model: nn.Module, graph: fx.Graph) -> dict[fx.Node, nn.Module]:
    """Return the modules that the network calls exactly once and that share no parameters."""
    uses = Counter(node.target for node in graph.nodes if node.op == "call_module")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    owners = Counter(map(id, parameters.values()))
    owners.update(id(parameters.get(node.target)) for node in graph.nodes if node.op == "get_attr")
    found = {}
    for node in graph.nodes:
        if node.op == "call_module" and uses[node.target] == 1:
            module = model.get_submodule(node.target)
            if all(owners[id(p)] == 1 for p in module.parameters()):
                found[node] = module
    return found


def _plain(module: nn.Module | None) -> bool:
    """Return whether it is a linear map in which every output reads every input."""
    return type(module) is nn.Linear or (type(module) is nn.Conv2d and module.groups == 1)


def _normalised(norm: Any, values: Tensor) -> Tensor:
    """Return what batch norm in eval mode makes of constants (c,)."""
    mean, variance = norm.running_mean, norm.running_var
    return functional.batch_norm(values[None], mean, variance, norm.weight, norm.bias, eps=norm.eps)[0]


def _pointwise(node: fx.Node, module: Any) -> Map | None:
    """Return the map of single values by an activation, None for other nodes."""
    if type(module) in POINTWISE:
        alone = copy.deepcopy(module).eval()
        return lambda values: alone(values.clone())
    if node.op == "call_function" and node.target in POINTWISE_FUNCTIONS and len(node.args) == 1:
        function: Any = node.target
        settings = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        return lambda values: function(values, **settings)
    if node.op == "call_method" and node.target in POINTWISE_FUNCTIONS:
        return lambda values: getattr(values, str(node.target))()
    return None


def _is_pool(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether it pools pixels and keeps constants."""
    if type(module) is nn.AvgPool2d:
        return module.divisor_override is None and (module.padding in (0, (0, 0)) or not module.count_include_pad)
    return type(module) in POOLS or (node.op == "call_function" and node.target in POOL_FUNCTIONS)


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    """Return whether it flattens channels and pixels of every image."""
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    return node.target in (torch.flatten, "flatten") and _given(node) in ((1,), (1, -1))


def _averages(node: fx.Node) -> bool:
    """Return whether it is the mean over all pixels of a channel."""
    given = _given(node)
    return node.target in (torch.mean, "mean") and given in (((2, 3),), ([2, 3],), ((-2, -1),), ([-2, -1],))


def _given(node: fx.Node) -> tuple[Any, ...]:
    """Return the arguments of a call beside its input."""
    return (*node.args[1:], *node.kwargs.values())


def _resize(layer: Layer, side: str, count: int) -> None:
    setattr(layer, f"{side}_{'features' if isinstance(layer, nn.Linear) else 'channels'}", count)


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter or buffer, with the same requires_grad."""
    before = getattr(module, name)
    is_buffer = name in dict(module.named_buffers())
    trained = module.weight.requires_grad if before is None else before.requires_grad
    setattr(module, name, value if is_buffer else nn.Parameter(value, requires_grad=bool(trained)))
