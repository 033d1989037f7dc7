"""Continue a prompt with a language model, from a run or from a packed file:

    python docs/examples/generate.py runs/pmf_gpt_shakespeare-seed0-20260101-120000 --prompt "ROMEO:"
    python docs/examples/generate.py gpt.safetensors --tokens 500 --temperature 0.7

Without either, a small ternary GPT first learns from Alice in Wonderland for a minute:

    11,024 weights on three levels, 9.4 kB packed
    Alice thought the sand the was the said ...
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

import mrfquant as mq
from mrfquant.commands.pack import pack_run
from mrfquant.packing import packed_network

TERNARY = {
    "Experiment.dataset": "@alice",
    "alice.context": 64,
    "Experiment.objective": "@NextToken",
    "Experiment.model": "@GPT",
    "GPT.layers": 2,
    "GPT.width": 48,
    "GPT.heads": 3,
    "Experiment.optimizer": "@AdamW",
    "AdamW.lr": 0.03,
    "AdamW.weight_decay": 0.0,
    "Trainer.learning_rate": "@CosineDecay()",
    "Experiment.inference": "@StraightThrough",
    "Labelling.levels": [-1, 0, 1],
    "Labelling.which": "weights",
    "Labelling.scale": "layer",
    "Trainer.iterations": 300,
    "Trainer.batch_size": 16,
    "Trainer.eval_interval": 100,
}


def packed_file(source: Path | None, folder: Path) -> Path:
    """The packed file itself, or one made of a run."""
    if source is not None and source.is_file():
        return source
    run = source or mq.launch(TERNARY, out=folder / "run", wandb="disabled").path
    pack_run(run).write(folder / "gpt.safetensors")
    return folder / "gpt.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description="Continue a prompt with a language model.")
    parser.add_argument("source", nargs="?", type=Path, help="the folder of a run, or a packed file")
    parser.add_argument("--prompt", default="Alice ", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=200, help="how many to draw")
    parser.add_argument("--temperature", type=float, default=0.7, help="below 1, likelier tokens come more often")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = packed_file(chosen.source, Path(folder))
        size = path.stat().st_size
        model = mq.load(path)
    network = packed_network(model)
    vocabulary = network.images["classes"]
    if unknown := set(chosen.prompt) - set(vocabulary):
        sys.exit(f"the model knows no {min(unknown)!r}: give a prompt in its characters")
    weights = sum(p.numel for p in network.parameters.values())
    print(f"{weights:,} weights on {len(next(iter(network.parameters.values())).levels)} levels, {size / 1e3:.1f} kB\n")
    prompt = torch.tensor([vocabulary.index(character) for character in chosen.prompt])
    generator = torch.Generator().manual_seed(chosen.seed)
    drawn = model.generate(prompt, chosen.tokens, chosen.temperature, generator)
    print("".join(vocabulary[token] for token in drawn.tolist()))


if __name__ == "__main__":
    main()
