"""mrfquant: quantizing neural networks by inference in Markov random fields.

The public interface is what `__init__.pyi` lists, `mrfquant.testing` (contract tests, needs pytest) and the commands
that `mrfquant --help` lists. Everything else may change without notice.
"""

import lazy_loader

__version__ = "0.2.0.dev0"

# Importing mrfquant by itself does not import torch: a name is imported when it is first asked for.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
