"""Packed layers for transformers: a quantizer that `from_pretrained` finds by the name in config.json."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from mrfquant.language.affine import AffineLinear
from mrfquant.language.decoder import decoder_blocks
from mrfquant.language.linear_layers import as_linear
from mrfquant.language.packed_folder import METHOD


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):
    """Settings of packed layers, as config.json has them.

    Args:
        bits: bits of a label.
        group_size: neighbouring weights of a row that share a scale and a bias.
        modules_to_not_convert: names of linear layers within the blocks that are in float.
    """

    def __init__(
        self, bits: int = 2, group_size: int = 64, modules_to_not_convert: list[str] | None = None, **_: Any
    ) -> None:
        self.quant_method: Any = METHOD
        self.bits, self.group_size = bits, group_size
        self.modules_to_not_convert = list(modules_to_not_convert or ())


@register_quantizer(METHOD)
class PackedQuantizer(HfQuantizer):
    """Replaces the linear layers in a decoder's blocks before weights are loaded."""

    quantization_config: PackedConfig
    requires_calibration = True  # only `round_language_model` makes such models
    is_trainable = False

    def is_serializable(self) -> bool:
        """Return that `save_pretrained` writes the packed layers."""
        return True

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        of = self.quantization_config
        as_linear(model)
        prefix, _blocks = decoder_blocks(model, type(model).__name__)
        for name, layer in list(model.named_modules()):
            inside = name.startswith(f"{prefix}.") and isinstance(layer, nn.Linear)
            if inside and name not in of.modules_to_not_convert:
                with torch.device("meta"):
                    has_bias = layer.bias is not None
                    packed = AffineLinear(layer.in_features, layer.out_features, has_bias, of.bits, of.group_size)
                model.set_submodule(name, packed)
