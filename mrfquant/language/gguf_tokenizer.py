"""Write the tokenizer of a folder of transformers as GGUF has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mrfquant.errors import BadInput
from mrfquant.storage.files import read_text

# How the text is cut before merges: a part of the regular expression in tokenizer.json -> llama.cpp's name.
CUTS = {
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*": "llama-bpe",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*": "qwen2",
}


def add_tokenizer(writer: Any, folder: Path, config: Any) -> None:
    """Write tokens, merges and special tokens."""
    from gguf import SpecialVocab

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BadInput(f"{folder} has no tokenizer.json, which a GGUF file needs: save the fast tokenizer there")
    tokenizer = json.loads(read_text(file))
    kind = tokenizer["model"].get("type")
    if kind != "BPE":
        raise BadInput(f"{file} is a tokenizer of the type {kind}, GGUF files can have BPE only: take --to mlx2")
    vocabulary = dict(tokenizer["model"]["vocab"])
    added = {token["content"]: token for token in tokenizer.get("added_tokens", ())}
    vocabulary |= {content: token["id"] for content, token in added.items()}
    by_number = {number: token for token, number in vocabulary.items()}
    tokens = [by_number.get(n, f"[PAD{n}]") for n in range(max(config.vocab_size, max(by_number) + 1))]
    bytes_too = bool(tokenizer["model"].get("byte_fallback"))
    writer.add_tokenizer_model("llama" if bytes_too else "gpt2")
    writer.add_tokenizer_pre("default" if bytes_too else _cut(tokenizer, file))
    writer.add_token_list(tokens)
    writer.add_token_types([_type(token, n in by_number, added, bytes_too) for n, token in enumerate(tokens)])
    if bytes_too:  # merges become scores: the first to be made has the highest
        writer.add_token_scores([-float(n) for n in range(len(tokens))])
    SpecialVocab(folder, load_merges=not bytes_too, n_vocab=len(tokens)).add_to_gguf(writer, quiet=True)


def _cut(tokenizer: dict[str, Any], file: Path) -> str:
    """Return llama.cpp's name for the way in which a text is cut into words."""
    before = tokenizer.get("pre_tokenizer") or {}
    parts = before.get("pretokenizers", [before])
    kinds = [part.get("type") for part in parts]
    if kinds == ["Digits", "ByteLevel"]:
        return "smollm"
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    expressions = [part.get("pattern", {}).get("Regex", "") for part in parts]
    for expression, name in CUTS.items():
        if any(expression in given for given in expressions):
            return name
    raise BadInput(f"{file} cuts texts in a way that llama.cpp has no known name for: take --to mlx2")


def _type(token: str, used: bool, added: dict[str, dict[str, Any]], bytes_too: bool) -> int:
    """Return the type of a token: 1 normal, 3 control, 4 user-defined, 5 unused, 6 a byte."""
    if not used:
        return 5
    if token in added:
        return 3 if added[token].get("special") else 4
    return 6 if bytes_too and len(token) == 6 and token.startswith("<0x") else 1
