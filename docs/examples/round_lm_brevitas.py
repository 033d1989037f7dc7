"""What brevitas makes of the same language model, for comparison with round_lm.py: GPTQ and Qronos.

    python round_lm_brevitas.py FOLDER valid.txt test.txt --gguf NAME.gguf --bits 2 --algorithm qronos

Layers, groups, windows and perplexity are those of round_lm.py, with zero points and in the order of activations; `pip
install mrfquant[language] brevitas`. Blocks are calibrated one after the other, on what the rounded ones before give;
with --whole every layer takes forwards of the whole network, many times as long, and Qronos sees the float inputs, too.

Expected output for SmolLM2-135M with --windows 16 64:

    brevitas gptq, 2 bits, scales by mse: perplexity 251.614, 13.7 minutes
"""

import time

import torch
from round_lm import load, parser, perplexity, windows
from torch import Tensor, nn


def quantized(model: nn.Module, bits: int, group_size: int, scales: str) -> nn.Module:
    """The model with brevitas' linear layers in its blocks, their weights not chosen yet."""
    from brevitas.graph.quantize import layerwise_quantize
    from brevitas_examples.common.generative.quantize import generate_quant_maps, generate_quantizers

    quantizers = generate_quantizers(
        weight_bit_width=bits,
        weight_param_method=scales,
        weight_scale_precision="float_scale",
        weight_quant_type="asym",
        weight_quant_granularity="per_group",
        weight_group_size=group_size,
        quantize_weight_zero_point=False,
        input_scale_precision="float_scale",  # none are quantized, and it wants to know all the same
        quant_attn_mode="sdpa",
    )
    layers = generate_quant_maps(**quantizers, dtype=torch.float32, device="cpu", quantize_embedding=False)
    return layerwise_quantize(model, layers, name_blacklist=["lm_head"]).eval()


def choose(base: nn.Module, tokens: Tensor, algorithm: str, whole: bool) -> None:
    """Choose the weights of all layers."""
    from brevitas_examples.llm.llm_quant import gpxq

    gpxq.send_to_device = lambda tensors, device: tensors  # it asks for CUDA
    apply = gpxq.apply_gptq if algorithm == "gptq" else gpxq.apply_qronos
    apply(base, [{"input_ids": tokens, "use_cache": False}], act_order=True, block_name=None if whole else "layers")
    for name, layer in list(base.named_modules()):
        if hasattr(layer, "quant_weight"):  # an ordinary layer, whose weights are not rounded again at every forward
            plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
            plain.weight.copy_(layer.quant_weight().value)
            base.set_submodule(name, plain)


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--algorithm", choices=["gptq", "qronos"], default="gptq")
    p.add_argument("--scales", choices=["mse", "stats", "hqo"], default="mse", help="how they are found (default: mse)")
    p.add_argument("--whole", action="store_true", help="forwards of the whole network for every layer")
    given = p.parse_args()

    model, tokenizer = load(given.model, given.gguf)
    calibration = windows(tokenizer, given.calibration, given.windows[0])
    test = windows(tokenizer, given.test, given.windows[1])
    began = time.perf_counter()
    with torch.no_grad():
        model = quantized(model, given.bits, given.group_size, given.scales)
        model.model(calibration[0], use_cache=False)  # finds the scales
        choose(model.model, torch.cat(calibration), given.algorithm, given.whole)
    minutes = (time.perf_counter() - began) / 60
    title = f"brevitas {given.algorithm}, {given.bits} bits, scales by {given.scales}{', whole' * given.whole}"
    print(f"{title}: perplexity {perplexity(model, test):.3f}, {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
