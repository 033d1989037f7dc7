"""Explicit Markov random fields: factor graphs, solvers with known guarantees, files of the UAI competitions.

The names are those of `__init__.pyi`; each is imported when it is first asked for, as most need torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
