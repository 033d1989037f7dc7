"""Give a decoder of transformers all its matrices as `nn.Linear`, where rounding and packing find them.

GPT-2 keeps matrices transposed (`Conv1D`), and mixtures of experts keep those of all experts in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mrfquant.language.affine import AffineLinear

Part = Callable[[Tensor], Tensor]


class Experts(nn.Module):
    """Linear layers in the place of one parameter (experts, outputs, inputs); an index gives the weight of one."""

    def __init__(self, experts: int, outputs: int, inputs: int) -> None:
        super().__init__()
        for number in range(experts):
            self.add_module(str(number), nn.Linear(inputs, outputs, bias=False, device="meta"))

    def __getitem__(self, number: int | Tensor) -> Tensor:
        layer = self.get_submodule(str(int(number)))
        return layer.values() if isinstance(layer, AffineLinear) else layer.get_parameter("weight")


def as_linear(model: nn.Module) -> dict[str, tuple[str, Part]]:
    """Replace layers, in place, by ones of `nn.Linear` without values.

    Returns:
        For each new parameter the name of the one it comes from, and the part of that one's values that it has.
    """
    from transformers.pytorch_utils import Conv1D

    found: dict[str, tuple[str, Part]] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, Conv1D):
            inputs, outputs = module.weight.shape
            model.set_submodule(name, nn.Linear(inputs, outputs, device="meta"))
            found |= {f"{name}.weight": (f"{name}.weight", lambda w: w.T.contiguous())}
        elif vars(module).get("is_transposed") is False:  # experts whose products are those of nn.Linear
            stacked = {own: p for own, p in module.named_parameters(recurse=False) if p.dim() == 3}
            for own, p in stacked.items():
                delattr(module, own)
                module.add_module(own, Experts(*p.shape))
                for number in range(len(p)):
                    found[f"{name}.{own}.{number}.weight"] = (f"{name}.{own}", _slice(number))
    if any(isinstance(module, Experts) for module in model.modules()):
        model.set_experts_implementation("eager")  # type: ignore[operator]  # which takes them one by one
    model.requires_grad_(False)
    return found


def _slice(number: int) -> Part:
    return lambda stacked: stacked[number]
