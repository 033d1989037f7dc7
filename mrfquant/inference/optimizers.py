"""The optimizers of torch under their own names in gin files: Adam, SGD, ..."""

from __future__ import annotations

import gin
import torch

# One cannot step without a closure, one takes sparse gradients only; a solver has dense ones and no closure.
_UNFIT = {torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam}

for _name in torch.optim.__all__:
    _class = getattr(torch.optim, _name)
    if isinstance(_class, type) and issubclass(_class, torch.optim.Optimizer) and _class not in _UNFIT:
        gin.external_configurable(_class, module="torch.optim", denylist=["params"])
