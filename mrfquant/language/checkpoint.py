"""Float language models on disk, read one tensor at a time: a folder as transformers saves it, or a GGUF file."""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mrfquant.config.extras import need_extra
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput
from mrfquant.language.gguf_names import architecture, gguf_names, unpermuted
from mrfquant.storage.files import read_text

INDEX, ONE_FILE = "model.safetensors.index.json", "model.safetensors"


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder of transformers, or a GGUF file."""
    need_extra("language", "rounding a language model")
    import_torchvision()  # transformers asks for it
    if path.is_file() and path.suffix == ".gguf":
        return GGUFFile(path)
    if (path / "config.json").is_file():
        return Folder(path)
    raise BadInput(
        f"{path} is no language model: give a folder with config.json and safetensors files, or a .gguf file"
    )


class Checkpoint(ABC):
    """A float language model on disk."""

    def __init__(self, path: Path, folder: Path, kwargs: dict[str, Any]) -> None:
        from transformers import AutoConfig

        self.path, self._folder, self._kwargs = path, folder, kwargs
        self.config = _sentence(lambda: AutoConfig.from_pretrained(folder, **kwargs), f"{path} has no configuration")

    @abstractmethod
    def tensors_for(self, model: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
        """Return a function that reads each parameter of the model, by its name."""

    @abstractmethod
    def identity(self) -> str:
        """Return what changes when the model does."""

    def tokenizer(self) -> Any:
        """Read the tokenizer."""
        from transformers import AutoTokenizer

        return _sentence(lambda: AutoTokenizer.from_pretrained(self._folder, **self._kwargs), f"{self.path} has none")

    def skeleton(self) -> Any:
        """Build the model with parameters that take no memory; its buffers have their values."""
        from accelerate import init_empty_weights
        from transformers import AutoModelForCausalLM

        def build() -> nn.Module:
            with init_empty_weights(include_buffers=False):
                return AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)

        model = _sentence(build, f"{self.path} is no causal language model that transformers knows")
        model.tie_weights()
        return model.eval().requires_grad_(False)


class Folder(Checkpoint):
    """A folder with config.json, a tokenizer, and safetensors in one or several files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, path, {})
        index = path / INDEX
        try:
            if index.is_file():
                files = json.loads(read_text(index))["weight_map"]
            elif (path / ONE_FILE).is_file():
                with safe_open(path / ONE_FILE, framework="pt") as file:
                    files = dict.fromkeys(file.keys(), ONE_FILE)
            else:
                raise BadInput(f"{path} has no {ONE_FILE}: save the model as safetensors, pickles are not loaded")
        except (SafetensorError, ValueError, KeyError, OSError) as e:
            raise BadInput(f"{path} cannot be read: {e}") from None
        self._files = {name: path / file for name, file in files.items()}

    def tensors_for(self, model: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
        prefix = f"{model.base_model_prefix}."
        found = {}
        for name, _ in model.named_parameters():
            spellings = (name, name.removeprefix(prefix), prefix + name)
            known = next((spelling for spelling in spellings if spelling in self._files), None)
            if known is None:  # its files have another layout, which transformers translates
                return self._loaded()
            found[name] = functools.partial(self._read, known)
        return found

    def identity(self) -> str:
        files = sorted(set(self._files.values()))
        parts = [read_text(self.path / "config.json"), *(f"{file.name} {file.stat().st_size}" for file in files)]
        for file in files:
            with open(file, "rb") as stream:
                parts.append(stream.read(2**20).hex())
        return "\n".join(parts)

    def _read(self, name: str) -> Tensor:
        try:
            with safe_open(self._files[name], framework="pt") as file:
                return file.get_tensor(name).float()
        except (SafetensorError, OSError) as e:
            raise BadInput(f"{self._files[name]} cannot be read: {e}") from None

    def _loaded(self) -> Mapping[str, Callable[[], Tensor]]:
        """Load the model whole, in its own type."""
        from transformers import AutoModelForCausalLM

        model = _sentence(
            lambda: AutoModelForCausalLM.from_pretrained(self.path, dtype="auto", use_safetensors=True),
            f"{self.path} cannot be loaded",
        )
        return {name: p.detach().float for name, p in model.named_parameters()}


class GGUFFile(Checkpoint):
    """A GGUF file, dequantized."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        reader = _sentence(lambda: GGUFReader(path), f"{path} cannot be read")
        self.architecture = architecture(str(reader.fields["general.architecture"].contents()))
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}  # mapped, unlike the fields
        super().__init__(path, path.parent, {"gguf_file": path.name})

    def tensors_for(self, model: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
        stored = self.tensors
        names = gguf_names(self.architecture, self.config, [name for name, _ in model.named_parameters()])
        if missing := [name for name, inside in names.items() if inside not in stored]:
            raise BadInput(f"{self.path} has no {names[missing[0]]}, the model's {missing[0]}")
        return {name: functools.partial(self._read, stored[names[name]], name) for name in names}

    def identity(self) -> str:
        with open(self.path, "rb") as stream:
            return f"{self.path.name} {self.path.stat().st_size} {stream.read(2**20).hex()}"

    def _read(self, tensor: Any, name: str) -> Tensor:
        from gguf.quants import dequantize

        values = dequantize(tensor.data, tensor.tensor_type)
        own = values if values.flags.writeable else values.copy()  # float32 is a view of the file
        return unpermuted(self.architecture, self.config, name, torch.from_numpy(own))


def _sentence(action: Callable[[], Any], what: str) -> Any:
    """Do something with a file that strangers may have damaged; say what is wrong in one sentence."""
    try:
        return action()
    except BadInput:
        raise
    except Exception as e:
        said = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise BadInput(f"{what}: {said}") from None
