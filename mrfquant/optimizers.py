"""Every optimizer of torch under its own name in gin files: Adam, SGD, ..."""

from __future__ import annotations

import gin
import torch

for _name in torch.optim.__all__:
    _class = getattr(torch.optim, _name)
    if isinstance(_class, type) and issubclass(_class, torch.optim.Optimizer) and _class is not torch.optim.Optimizer:
        gin.external_configurable(_class, module="torch.optim", denylist=["params"])
