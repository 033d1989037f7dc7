"""Networks that ONNX Runtime computes, as PyTorch modules, and whether they compute what they should."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mrfquant.config.extras import need_extra
from mrfquant.errors import BadInput

ROUNDING = 1e-3  # tolerated difference of outputs, as a fraction of the largest: float32 sums in another order


class RuntimeNetwork(nn.Module):
    """An ONNX file as a module for evaluation on the CPU, with as many threads as torch has.

    Args:
        data: the bytes of the file.
        optimized: False computes node by node as the file says, slowly: what fused kernels are compared with.
    """

    def __init__(self, data: bytes, optimized: bool = True) -> None:
        super().__init__()
        need_extra("onnx", "running ONNX")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors only
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has a dozen classes of its own, without one above them
            reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
            raise BadInput(f"ONNX Runtime cannot read this ONNX file ({reason}): write it again") from None
        self.names = [value.name for value in self.session.get_inputs()]

    def forward(self, *inputs: Tensor, **keywords: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Take inputs in the file's order or by name; return a tensor, or as many as the network has."""
        given = dict(zip(self.names, inputs, strict=False)) | keywords
        outputs = self.session.run(None, {name: _array(tensor) for name, tensor in given.items()})
        found = tuple(torch.from_numpy(np.asarray(output)) for output in outputs)
        return found[0] if len(found) == 1 else found


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy()


@torch.no_grad()
def check_same(
    found: nn.Module,
    expected: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    within: float = ROUNDING,
) -> float:
    """Return the largest difference of two networks' outputs, as a share of the largest; refuse one above `within`."""
    ours, theirs = (_tensors(network(*inputs, **(keywords or {}))) for network in (found, expected))
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))
    if not worst <= within:
        raise BadInput(
            f"the network as ONNX gives outputs that differ by {worst:.1e} of the largest one, expected at most "
            f"{within:.0e}: it was not written; leave --onnx out, and report the network"
        )
    return worst


def _tensors(outputs: Any) -> list[Tensor]:
    return [t.detach().cpu().float() for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
