"""Networks on levels as they should be stored: a label takes bits, not a float."""

from mrfquant.packing.file import PackedNetwork, packed_network
from mrfquant.packing.networks import load, pack_model
from mrfquant.packing.parameter import PackedParameter
from mrfquant.packing.runs import pack

__all__ = ["PackedNetwork", "PackedParameter", "load", "pack", "pack_model", "packed_network"]
