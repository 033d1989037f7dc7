"""Networks on levels as they should be stored: a label takes bits, not a float."""

from mrfquant.packing.bits import pack, unpack
from mrfquant.packing.file import PackedNetwork
from mrfquant.packing.networks import load, pack_model, pack_weights, packed_network
from mrfquant.packing.parameter import PackedParameter

__all__ = ["PackedNetwork", "PackedParameter", "load", "pack", "pack_model", "pack_weights", "packed_network", "unpack"]
