"""REF: the floating-point network, trained as usual; what every quantized one is measured against."""

from __future__ import annotations

from torch import Tensor

from mrfquant.inference.base import Inference
from mrfquant.settings import configurable


@configurable(supplied=["model", "optimizer"])
class Reference(Inference):
    """Gradient descent on the weights themselves."""

    method = "REF"

    def variables(self) -> list[Tensor]:
        self.parameters.w.grad = self.parameters.g
        return [self.parameters.w]

    def update(self) -> None:
        self.optimizer.step()
