"""Built-in hooks."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.errors import BadInput
from mrfquant.inference import Inference
from mrfquant.training.trainer import Hook, Trainer


@configurable
class Samples(Hook):
    """Prints how the rounded language model continues a prompt, at each evaluation.

    Args:
        prompt: what it continues, in characters of its data set.
        length: tokens to draw.
        temperature: divides the logits: below 1 the likelier ones come more often.
    """

    def __init__(self, prompt: str = "\n", length: Count = 160, temperature: Positive = 0.8) -> None:
        self.prompt, self.length, self.temperature = prompt, length, temperature

    def evaluated(self, trainer: Trainer) -> None:
        model: Any = trainer.model
        vocabulary = trainer.dataset.description()["classes"]
        if not hasattr(model, "generate") or not set(self.prompt) <= set(vocabulary):
            raise BadInput(f"Samples needs a network with `generate` and data that has {self.prompt!r}", "Samples")
        tokens = torch.tensor([vocabulary.index(c) for c in self.prompt], device=trainer.device)
        generator = torch.Generator(trainer.device).manual_seed(trainer.iteration)
        training = model.training
        drawn = model.eval().generate(tokens, self.length, self.temperature, generator)[len(tokens) :]
        model.train(training)
        text = "".join(vocabulary[token] for token in drawn.tolist())
        trainer.say("\n".join(f"    | {line}" for line in text.strip("\n").split("\n")))


@configurable
class Decide(Hook):
    """Lets something choose all labels at chosen moments; training goes on from them (`Inference.adopt`).

    Args:
        by: chooses the labels, given the solver and batches of inputs, as @Jointly() does.
        every: iterations between two such moments; those of the whole run for its end alone.
        examples: of the training split, whose inputs it gets, without augmentation.
        batch_size: of them at a time.
    """

    def __init__(
        self,
        by: Callable[[Inference, list[Any]], Sequence[Tensor]],
        every: Count,
        examples: Count = 2000,
        batch_size: Count = 250,
    ) -> None:
        self.by, self.every, self.examples, self.batch_size = by, every, examples, batch_size

    def step(self, trainer: Trainer) -> None:
        inference, inputs = trainer.inference, (x for x, _ in trainer.dataset.ordered("train", self.batch_size))
        before = [inference.labels(*item) for item in inference.items()]
        labels = self.by(inference, list(islice(inputs, -(-self.examples // self.batch_size))))
        inference.adopt(labels)
        changed = sum(int((old != new).sum()) for old, new in zip(before, labels, strict=True))
        trainer.say(f"{changed / len(inference.labelling):.2%} of the labels decided otherwise than one by one")
