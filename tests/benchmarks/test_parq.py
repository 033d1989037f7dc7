"""torchao's PARQ in our trainer is the peer that the guide describes: least-squares levels for each output channel."""

from pathlib import Path

import pytest
import torch

from mrfquant.config.gin_files import Config
from mrfquant.training.experiment import Experiment

pytest.importorskip("torchao")


@pytest.mark.parametrize(("config", "levels"), [("parq", 2), ("parq_ternary", 3)])
def test_every_channel_has_levels_of_its_own(config, levels):
    steps = ["PARQ.iterations = 4", "Trainer.iterations = 4", "Trainer.batch_size = 8"]
    Config(f"{config}_resnet20_cifar10.gin", ["Experiment.smoke = True", *steps])
    experiment = Experiment(device=torch.device("cpu"), data_root=Path("nowhere"))
    trainer = experiment.trainer()
    for _ in range(4):
        trainer._step()
    rows = experiment.model.get_submodule("layer2.1.conv1").weight.detach().flatten(1)
    assert all(len(row.unique()) == levels for row in rows)
    assert len({row.max().item() for row in rows}) > len(rows) / 2
    assert experiment.identity()["method"] == "PARQ"
