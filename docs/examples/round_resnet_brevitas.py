"""What brevitas makes of a ResNet for CIFAR-10, for comparison with `mq.round_network`: GPTQ and Qronos.

    python round_resnet_brevitas.py 20 2 gptq resnet20_cifar10.safetensors

Depth, bits, algorithm, weights; `pip install brevitas`. Every row has a scale and a zero point, found by mse; the
weights are chosen in the order of activations, on the first 1,024 training images; first and last layer stay in float.

Expected output, the second line with statistics of batch norm moved as `round_network` moves them:

    brevitas gptq, 2 bits: 88.94 %
    with relative statistics: 89.69 %
"""

import itertools
import sys

import torch
from brevitas.graph.gpfq import gpfq_mode
from brevitas.graph.gptq import gptq_mode
from brevitas.graph.qronos import Qronos
from brevitas.graph.quantize import layerwise_quantize
from brevitas.nn import QuantConv2d
from brevitas.quant.shifted_scaled_int import ShiftedUint8WeightPerChannelFloatMSE
from safetensors.torch import load_file
from torch import Tensor, nn

from mrfquant.data import cifar10, data_root
from mrfquant.models import CifarResNet
from mrfquant.training import evaluate


def moments(model: nn.Module, norm: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of what reaches a batch norm."""
    seen: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(images)
    hook.remove()
    return seen[0].mean((0, 2, 3)), seen[0].var((0, 2, 3), unbiased=False)


@torch.no_grad()
def main(depth: str, bits: str, algorithm: str, weights: str) -> None:
    data = cifar10(data_root(), statistics="imagenet")
    batches = [images for images, _ in itertools.islice(data.ordered("train", 128), 8)]
    images = torch.cat(batches)
    model, exact = (CifarResNet((3, 32, 32), 10, depth=int(depth)).eval() for _ in range(2))
    for network in (model, exact):
        network.load_state_dict(load_file(weights))
    quantizer = ShiftedUint8WeightPerChannelFloatMSE.let(bit_width=int(bits))
    layers = {nn.Conv2d: (QuantConv2d, {"weight_quant": quantizer, "return_quant_tensor": False})}
    model = layerwise_quantize(model, layers, name_blacklist=["conv1", "linear"]).eval()
    model(batches[0])  # finds the scales

    mode = gptq_mode if algorithm == "gptq" else gpfq_mode
    settings = {} if algorithm == "gptq" else {"algorithm_impl": Qronos, "create_weight_orig": True}
    with mode(model, act_order=True, use_quant_activations=False, **settings) as chooser:
        for _ in range(chooser.num_layers):
            for batch in batches:
                chooser.model(batch)
            chooser.update()
    print(f"brevitas {algorithm}, {bits} bits: {evaluate(model, data, 'test')['top1']:.2f} %", flush=True)
    norms = [name for name, module in exact.named_modules() if isinstance(module, nn.BatchNorm2d)]
    for name in norms:  # in their order: each changes what reaches the next
        norm = model.get_submodule(name)
        (mean_f, var_f), (mean_q, var_q) = (
            moments(network, network.get_submodule(name), images) for network in (exact, model)
        )
        k = (var_q / var_f).sqrt()
        norm.running_mean.mul_(k).add_(mean_q - mean_f * k)
        norm.running_var.mul_(k.square())
    print(f"with relative statistics: {evaluate(model, data, 'test')['top1']:.2f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
