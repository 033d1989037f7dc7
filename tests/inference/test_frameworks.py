"""Solvers in the loops of other frameworks, with the real packages: Lightning, accelerate, DDP, averaged weights."""

import functools
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mrfquant as mq

STEPS, SEED = 40, 3


def network(seed=SEED):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))


def data():
    x = torch.randn(32 * STEPS, 12, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32)


def solver_of(model):
    labelling = mq.Labelling(model, [-1, 1], which="weights", scale="channel")
    adam = functools.partial(torch.optim.Adam, lr=0.02)
    solver = mq.ProximalMeanField(labelling, adam, beta=mq.GeometricTo(end=1000.0), start="weights")
    solver.prepare(STEPS)
    return solver


@pytest.fixture(scope="module")
def plain():
    """The weights that a plain loop ends with."""
    model = network()
    solver = solver_of(model)
    for x, y in data():
        functional.cross_entropy(model(x), y).backward()
        solver.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(model, expected):
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore")  # of the machine, as where there is SLURM: xdist cannot pass their classes on
@pytest.mark.parametrize("automatic", [True, False])
def test_lightning_trains_as_a_plain_loop_does(automatic, plain, tmp_path):
    mq.import_torchvision()  # Lightning imports it, and some builds need help
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()
            self.automatic_optimization = automatic

        def training_step(self, batch, index):
            loss = functional.cross_entropy(self.model(batch[0]), batch[1])
            if not automatic:
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self):
            return solver_of(self.model)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, data())
    assert_same(module.model, plain)


def test_accelerate_trains_as_a_plain_loop_does(plain):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    solver = solver_of(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(solver, lambda step: 1.0)
    prepared, optimizer, loader, scheduler = accelerator.prepare(model, solver, data(), scheduler)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(functional.cross_entropy(prepared(x), y))
        optimizer.step()
        scheduler.step()
    assert_same(model, plain)


def replica(rank, port, folder):
    """One of two processes; `folder` gets its weights."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = network(seed=rank)  # each starts elsewhere
    solver = solver_of(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    for x, y in data():
        solver.zero_grad()
        functional.cross_entropy(parallel(x[rank::2]), y[rank::2]).backward()
        solver.step()
    torch.save({name: p.detach() for name, p in model.named_parameters()}, folder / f"{rank}.pt")
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads do not always survive the interpreter's end


def test_replicas_with_different_seeds_train_one_network(python, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for process in [python.start(__file__, rank, port, tmp_path) for rank in range(2)]:
        done = process.wait()
        assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_averages_of_weights_are_off_the_levels_and_those_of_variables_are_not():
    """EMA of a network's weights is no quantized network; averaged variables round to one."""
    model = network()
    solver = solver_of(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    variables = [x.clone() for x in solver.variables]
    for x, y in data():
        functional.cross_entropy(model(x), y).backward()
        solver.step()
        average.update_parameters(model)
        for mean, now in zip(variables, solver.variables, strict=True):
            mean.lerp_(now, 0.2)
    with pytest.raises(mq.BadInput, match="not on the levels"):
        solver.labelling.check_on_levels(average.module.state_dict())
    for x, mean in zip(solver.variables, variables, strict=True):
        x.copy_(mean)
    solver.write_all()
    solver.finalize()
    solver.labelling.check_on_levels(model.state_dict())


if __name__ == "__main__":
    replica(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
