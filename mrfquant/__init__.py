"""mrfquant: quantizing neural networks by inference in Markov random fields.

The public interface is what `__init__.pyi` lists, `mrfquant.testing` (contract tests, needs pytest) and the commands
that `mrfquant --help` lists. Everything else may change without notice.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

import lazy_loader

__version__ = "0.2.0.dev0"

# Importing mrfquant by itself does not import torch: a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

QUANTIZERS = "transformers.quantizers.auto"


def _register_packed_layers() -> None:
    importlib.import_module("mrfquant.language.transformers_layers")


class _AfterTransformers(MetaPathFinder):
    """Registers packed layers when transformers is imported, so that its `from_pretrained` knows them."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != QUANTIZERS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                execute(module)
                _register_packed_layers()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if QUANTIZERS in sys.modules:
    _register_packed_layers()
else:
    sys.meta_path.insert(0, _AfterTransformers())
