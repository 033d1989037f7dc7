"""Solvers in the loops of other frameworks, with the real packages: Lightning, accelerate, DDP, averaged weights."""

import functools
import importlib
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


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Import a file that the guide shows."""
    from tests.test_readme import write_files  # not at the top: processes run this file as a script

    write_files("networks.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    mq.import_torchvision()

    def shown(name):
        return importlib.import_module(name)

    yield shown
    for name in ("on_levels", "callback"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore")
def test_lightning_with_the_callback_of_the_guide_validates_and_ends_on_levels(shown):
    lightning = pytest.importorskip("lightning")
    on_levels, seen = shown("callback").OnLevels("packed.safetensors"), []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, index):
            return functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, index):
            seen.append(self.model[0].weight[0].abs().unique().numel())
            self.log("loss", functional.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self):
            self.solver = solver_of(self)
            return self.solver

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[on_levels],
    )
    trainer.fit(module, data(), data())
    assert set(seen) == {1}
    assert module.solver.budget == 2 * STEPS
    module.solver.labelling.check_on_levels(module.state_dict())
    assert torch.equal(mq.load("packed.safetensors", Module()).model[0].weight, module.model[0].weight)


@pytest.mark.filterwarnings("ignore")
def test_transformers_trainer_of_the_guide_evaluates_and_ends_on_levels_also_after_a_resume(shown):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    trainer_of, seen = shown("on_levels").OnLevels, []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x, labels):
            if not self.training:
                seen.append(self.layers[0].weight[0].abs().unique().numel())
            logits = self.layers(x)
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    rows = [{"x": x, "labels": y} for x, y in data().dataset]

    def train(**settings):
        model = Model()
        solver = solver_of(model)
        arguments = transformers.TrainingArguments(
            "out",
            per_device_train_batch_size=32,
            num_train_epochs=1,
            eval_strategy="steps",
            eval_steps=20,
            save_steps=20,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = trainer_of(solver, model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:64])
        trainer.train(**settings)
        solver.labelling.check_on_levels(model.state_dict())
        assert solver.budget == STEPS
        return trainer

    trainer = train()
    assert set(seen) == {1}
    trainer.evaluate()
    first, *_, last, again = (entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert again == pytest.approx(last)
    assert again < first
    expected = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert torch.equal(mq.load("out/packed.safetensors", Model()).layers[0].weight, expected["layers.0.weight"])
    resumed = train(resume_from_checkpoint="out/checkpoint-20")
    assert all(torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items())


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
