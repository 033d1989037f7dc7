"""Continue a prompt with a language model, from a run or from a packed file:

    python docs/examples/generate.py runs/pmf_gpt_shakespeare-seed0-20260101-120000 "ROMEO:"
    python docs/examples/generate.py gpt.safetensors "ROMEO:"

Without either, a small ternary GPT first learns a little from Alice in Wonderland.

Expected output, below the run's own:

    55,296 weights on 3 levels, a file of 32.3 kB
    Alice of thite a the the the on the wate so thighe, and a the a the a sone to in and so thit the thark, ...
"""

import sys
import tempfile
from pathlib import Path

import torch

import mrfquant as mq
from mrfquant.packing import packed_network

TOKENS, TEMPERATURE = 200, 0.5
TERNARY = {
    "Experiment.dataset": "@alice",
    "alice.context": 64,
    "Experiment.objective": "@NextToken",
    "Experiment.model": "@GPT",
    "GPT.layers": 2,
    "GPT.width": 48,
    "GPT.heads": 3,
    "Experiment.optimizer": "@AdamW",
    "AdamW.lr": 0.02,
    "Trainer.learning_rate": "@CosineDecay()",
    "Experiment.inference": "@ProximalMeanField",
    "ProximalMeanField.jacobian": "straight_through",
    "ProximalMeanField.beta": "@GeometricTo()",
    "Labelling.levels": [-1, 0, 1],
    "Labelling.which": "weights",
    "Experiment.start": "weights",
    "Labelling.scale": 0.1,
    "Experiment.learn_scale": True,
    "Experiment.groups": {"labelled": {"lr": 1.0}},  # in units of the levels
    "Trainer.iterations": 300,
    "Trainer.batch_size": 16,
}


def packed_file(source: Path | None, folder: Path) -> Path:
    """The packed file itself, or one made of a run."""
    if source is not None and source.is_file():
        return source
    run = source or mq.launch(TERNARY, out=folder / "run", wandb="disabled").path
    mq.pack(run).write(folder / "gpt.safetensors")
    return folder / "gpt.safetensors"


source, prompt = (*sys.argv[1:], None, None)[:2]
with tempfile.TemporaryDirectory() as folder:
    path = packed_file(None if source is None else Path(source), Path(folder))
    size = path.stat().st_size
    model = mq.load(path)
network = packed_network(model)
characters = network.input_info["classes"]
packed = network.parameters.values()
weights, levels = sum(p.numel for p in packed), max(len(p.levels) for p in packed)
print(f"{weights:,} weights on {levels} levels, a file of {size / 1e3:.1f} kB")
tokens = torch.tensor([characters.index(character) for character in prompt or "Alice "])
drawn = model.generate(tokens, TOKENS, TEMPERATURE, torch.Generator().manual_seed(0))
print("".join(characters[token] for token in drawn.tolist()))
