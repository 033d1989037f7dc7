"""Small language models with random weights, saved as transformers does."""

from pathlib import Path

import pytest

import mrfquant as mq

TEXT = "".join(f"Line {n}: the cat sat on mat {n * 7 % 13} and looked at {n * n} birds, again.\n" for n in range(400))


@pytest.fixture(scope="session")
def transformers():
    mq.import_torchvision()
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="session")
def save_model(transformers, tmp_path_factory):
    """Save a model of a configuration, with a byte-level tokenizer, and return its folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator([TEXT], trainer)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")

    def save(config) -> Path:
        import torch

        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp("models") / config.model_type
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for p in model.parameters():  # larger than at the start of a training, so that rounding matters
                if p.dim() > 1:
                    p.mul_(4)
        model.save_pretrained(folder, safe_serialization=True)
        wrapped.save_pretrained(folder)
        return folder

    return save


FEW = {"solver": "gptq", "windows": 2, "length": 32, "test_windows": 2, "say": lambda line: None}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="session")
def llama(transformers, save_model) -> Path:
    return save_model(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
