"""Built-in hooks."""

from typing import Any

import torch

from mrfquant.config.settings import Count, Positive, configurable
from mrfquant.errors import BadInput
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
