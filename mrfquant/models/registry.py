"""Networks that can be built again from a name and arguments, as a packed file has them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from mrfquant.config.settings import configurable

N = TypeVar("N", bound=nn.Module)
NETWORKS: dict[str, Callable[..., nn.Module]] = {}


def network(cls: type[N]) -> type[N]:
    """Make a class of networks known by its name, here and to gin; instances remember their `arguments`."""
    build = cls.__init__

    @functools.wraps(build)
    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(build)
        given = list(signature.bind(self, *args, **kwargs).arguments.items())[1:]
        build(self, *args, **kwargs)
        self.arguments = {name: value for name, value in given if value != signature.parameters[name].default}

    cls.__init__ = remember  # type: ignore[method-assign]
    NETWORKS[cls.__name__] = configurable(cls, supplied=["shape", "classes"])
    return cls
