"""Rounding a language model: the linear layers of its blocks to a few bits a weight, with a scale for every 64 of them.

    python round_lm.py FOLDER valid.txt test.txt --gguf NAME.gguf --bits 2 --solver icm --out small.safetensors
    python round_lm.py FOLDER valid.txt test.txt --gguf NAME.gguf --packed small.safetensors

FOLDER has a causal model of transformers (pip install mrfquant[language]); of a GGUF file in it, the dequantized
weights are the float network. It calibrates on 64 windows of 512 tokens of the first text and prints the perplexity of
the first 32,768 tokens of the second one. Embeddings, head and norms stay in float. `--folder` keeps the answers of all
layers, and the same command goes on from there after it was killed. The second form reads what the first one wrote.

Expected output for SmolLM2-135M with --zero-point --windows 16 64, after a line for each of 210 layers and the report:

    perplexity 62.40, ...

and with --memory 12 in the place of --zero-point --windows 16 64 (docs/trellis.md):

    perplexity 35.96, ...
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import mrfquant as mq

WINDOW = 512  # tokens


def load(folder: Path, gguf: str | None) -> tuple[nn.Module, object]:
    """A model and its tokenizer."""
    mq.import_torchvision()  # transformers asks for it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kwargs = {"gguf_file": gguf} if gguf else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **kwargs)
    return model.eval(), AutoTokenizer.from_pretrained(folder, **kwargs)


def windows(tokenizer: object, file: Path, count: int) -> list[Tensor]:
    """The first tokens of a text, (1, WINDOW) at a time."""
    tokens = tokenizer(file.read_text(), return_tensors="pt").input_ids[:, : count * WINDOW]
    return list(tokens.split(WINDOW, 1))


@torch.no_grad()
def perplexity(model: nn.Module, texts: list[Tensor]) -> float:
    """exp of the mean loss of every token but the first of a window."""
    losses = [functional.cross_entropy(model(text).logits[0, :-1], text[0, 1:]) for text in texts]
    return math.exp(torch.stack(losses).mean())


def parser(text: str) -> argparse.ArgumentParser:
    """The arguments of every way to round a model."""
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path, metavar="FOLDER", help="of the model")
    p.add_argument("calibration", type=Path, help="a text to calibrate with")
    p.add_argument("test", type=Path, help="a text to measure perplexity on")
    p.add_argument("--gguf", metavar="NAME", help="the file in FOLDER, if it is one of that kind")
    p.add_argument("--bits", type=int, default=2, help="of a weight (default: 2)")
    p.add_argument("--group-size", type=int, default=64, help="weights that share a scale (default: 64)")
    p.add_argument("--windows", type=int, nargs=2, default=[64, 64], help="to calibrate with, to test on")
    return p


def main() -> None:
    p = parser(__doc__)
    p.add_argument("--memory", type=int, help="round to a trellis of that memory instead, as 12")
    p.add_argument("--zero-point", action="store_true", help="fit an offset for every group, too")
    p.add_argument("--solver", default="icm", help="nearest, gptq, icm, mean_field or tree (default: icm)")
    p.add_argument("--folder", type=Path, help="keeps answers, to go on after an interruption")
    p.add_argument("--out", type=Path, help="the file to write the packed model to")
    p.add_argument("--packed", type=Path, help="measure the model of such a file instead")
    given = p.parse_args()

    model, tokenizer = load(given.model, given.gguf)
    calibration = windows(tokenizer, given.calibration, given.windows[0])
    test = windows(tokenizer, given.test, given.windows[1])
    if given.packed:
        mq.load(given.packed, model)
    else:
        result = mq.round_network(
            model,
            calibration,
            mq.Trellis(given.bits, given.memory) if given.memory else given.bits,
            given.solver,
            exclude=["lm_head"],
            group_size=None if given.memory else given.group_size,
            zero_point=given.zero_point,
            forward=lambda model, tokens: model.model(tokens, use_cache=False),  # without the head
            folder=given.folder,
        )
        print(result)
        if given.out:
            print(f"{given.out}: {result.save(given.out):,} bytes")
    began = time.perf_counter()
    print(f"perplexity {perplexity(model, test):.3f}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
