"""Packed networks against float: kept as bits in PyTorch, and in ONNX Runtime with 8-bit activations."""

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mrfquant.benchmarks.timing import Options, Row, in_turns, peer, ratios
from mrfquant.models import GPT, VGG, CifarResNet, LeNet5, ResNet
from mrfquant.packing.activations import calibration_reader, quietly
from mrfquant.packing.layers import pack_layers
from mrfquant.packing.onnx_export import to_onnx
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.runtime import RuntimeNetwork

LEVELS = (-1.0, 1.0)
SIZE, BATCH = 4096, 64


def measure_packed(options: Options, width: float = 1.0) -> Iterator[tuple[str, Row]]:
    """Measure linear maps and networks, and with peers ONNX; `width` is ResNet-18's."""
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
        yield from measure_peers(options)


@torch.no_grad()
def measure_evaluation(build: Callable[[], nn.Module], shape: tuple[int, ...], options: Options) -> Row:
    """Time a float evaluation with weights on two levels, and give packed time and memory as ratios to it."""
    torch.manual_seed(0)
    model, images = build().eval(), torch.randn(shape)
    weights = {name: p for name, p in model.named_parameters() if name.endswith("weight")}
    for p in weights.values():
        p.copy_(torch.where(p < 0, *LEVELS))
    packed = pack_layers(copy.deepcopy(model), {name: PackedParameter.of(p, LEVELS) for name, p in weights.items()})
    times = in_turns({"float": lambda: model(images), "packed": lambda: packed(images)}, options)
    whole, kept = (sum(t.nbytes for t in (*net.parameters(), *net.buffers())) for net in (model, packed))
    return {**ratios(times), "kept": {"ratio": kept / whole}}


BINARY, TERNARY = (-1.0, 1.0), (-1.0, 0.0, 1.0)
BATCHES = (1, 64)
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
IMAGES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "lenet5": (LeNet5, GREY),
    "resnet20": (CifarResNet, COLOUR),
    "resnet18": (ResNet, COLOUR),
    "vgg16": (VGG, COLOUR),
}
WIDTHS, LAYERS, PAST = (512, 1024), 4, 64  # of the GPT, and tokens before the one that is timed


def measure_peers(options: Options) -> Iterator[tuple[str, Row]]:
    """Time networks on batches and a GPT token by token; file and memory are ratios to float ONNX's."""
    if peer("onnxruntime", "'mrfquant[onnx]'") is None or peer("onnxscript", "'mrfquant[onnx]'") is None:
        return
    for name, (build, shape) in IMAGES.items():
        torch.manual_seed(0)
        model = build(shape, 10)
        update_bn([torch.randn(16, *shape)], model)  # statistics of noise
        model.eval()
        files = _files(model, BINARY, [(torch.randn(32, *shape),) for _ in range(4)], static=True)
        for batch in BATCHES:
            images = torch.randn(batch, *shape)
            yield f"{name}, batch {batch}", _row(model, files, (images,), options)
    for width in WIDTHS:
        torch.manual_seed(0)
        gpt = OneToken(GPT((2 * PAST,), 65, layers=LAYERS, width=width, heads=width // 64)).eval()
        token, past = torch.zeros(1, 1, dtype=torch.int64), gpt.past(PAST)
        files = _files(gpt, TERNARY, [(token, *past)], static=False)
        yield f"gpt of width {width}, a token", _row(gpt, files, (token, *past), options)


class OneToken(nn.Module):
    """A GPT's next step: a token and what is kept of those before it, to logits and what is kept then."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, token: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Give keys and values of the blocks in turn, each (1, heads, tokens, width of a head)."""
        cache = list(zip(past[::2], past[1::2], strict=True))
        logits = self.gpt(token, cache)
        return logits, *(tensor for pair in cache for tensor in pair)

    def past(self, tokens: int) -> tuple[Tensor, ...]:
        """Return what is kept of so many random tokens."""
        cache: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            self.gpt(torch.randint(65, (1, tokens)), cache)
        return tuple(tensor for pair in cache for tensor in pair)


@torch.no_grad()
def _files(
    model: nn.Module, levels: tuple[float, ...], batches: Sequence[tuple[Tensor, ...]], static: bool
) -> dict[str, bytes]:
    """Return the network in float, by ONNX Runtime's own quantization, and ours with weights rounded to levels."""
    rounded, packed = copy.deepcopy(model), {}
    for name, p in rounded.named_parameters():
        if p.dim() > 1 and "token" not in name:
            scale = p.abs().flatten(1).mean(1)
            column = scale.view(-1, *[1] * (p.dim() - 1))
            nearest = (p / column).sign() if len(levels) == 2 else (p / column).round().clamp(-1, 1)
            p.copy_(nearest * column)
            packed[name] = PackedParameter.of(p, levels, scale=scale)
    lengths = {"token": None, "past": tuple({2: torch.export.Dim.AUTO} for _ in batches[0][1:])}  # tokens before
    shapes = None if static else lengths
    plain = to_onnx(model, {}, batches[0], dynamic_shapes=shapes).data
    arguments: list[tuple[tuple[Tensor, ...], dict[str, Tensor]]] = [(batch, {}) for batch in batches]
    ours = to_onnx(rounded, packed, batches[0], calibration=arguments, dynamic_shapes=shapes).data
    return {"float": plain, "its int8": _quantized(plain, batches if static else None), "ours": ours}


def _quantized(data: bytes, batches: Sequence[tuple[Tensor, ...]] | None) -> bytes:
    """Quantize as ONNX Runtime advises: static for convolutions, dynamic for transformers."""
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [value.name for value in onnxruntime.InferenceSession(data).get_inputs()]
    with tempfile.TemporaryDirectory() as folder, quietly():
        first, ready, out = (Path(folder) / f"{step}.onnx" for step in ("float", "ready", "int8"))
        first.write_bytes(data)
        quant_pre_process(first, ready, skip_symbolic_shape=True)
        if batches is None:
            quantization.quantize_dynamic(ready, out, per_channel=True, reduce_range=True)
        else:
            given = [dict(zip(names, [t.numpy() for t in batch], strict=True)) for batch in batches]
            kinds = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8}
            quantization.quantize_static(
                ready, out, calibration_reader(given), per_channel=True, reduce_range=True, **kinds
            )
        return out.read_bytes()


def _row(model: nn.Module, files: dict[str, bytes], inputs: tuple[Tensor, ...], options: Options) -> Row:
    networks = {name: RuntimeNetwork(data) for name, data in files.items()}
    sides: dict[str, Callable[[], Any]] = {"PyTorch": lambda: model(*inputs)}
    sides |= {name: functools.partial(network, *inputs) for name, network in networks.items()}
    with torch.inference_mode():
        found = ratios(in_turns(sides, options))
    found["file"] = {"ratio": len(files["ours"]) / len(files["float"])}
    found["memory"] = {"ratio": _loaded(files["ours"]) / _loaded(files["float"])}
    return found


def _loaded(data: bytes) -> int:
    """Return the bytes of the constants of a file once ONNX Runtime has folded and fused what it can."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = f"{folder}/optimized.onnx", 3
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        graph = onnx.load(f"{folder}/optimized.onnx").graph
    return sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer)
