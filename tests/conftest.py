"""What all tests share: an empty gin configuration, one thread (tests may run side by side), no W&B."""

import gin
import pytest
import torch


@pytest.fixture(autouse=True)
def _clean_slate(monkeypatch):
    gin.clear_config()
    torch.set_num_threads(1)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    yield
    gin.clear_config()
