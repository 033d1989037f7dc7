"""The base of all contracts: the part under test, its level sets, and tests of its settings in gin."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gin
import pytest
import torch
from torch import Tensor, nn

from mrfquant.config.gin_internals import isolated_gin
from mrfquant.errors import BadSetting
from mrfquant.labelling import Labelling

LEVEL_SETS: tuple[Sequence[float] | None, ...] = ((-1, 1), (-1, 0, 1), (-2, -1, 1, 2))


class Quadratic(nn.Module):
    """60 weights w in three tensors, in float64, with the separable, strictly convex loss sum_j c_j (w_j - a_j)² / 2.

    Every a_j is one of the levels, so the best labelling is known and no relaxed weights are better; `order` is that of
    the tensors and changes nothing else.
    """

    SHAPES: ClassVar[dict[str, tuple[int, ...]]] = {"matrix": (6, 5), "kernel": (3, 2, 2, 2), "bias": (6,)}

    def __init__(self, levels: Sequence[float], order: Sequence[str] = tuple(SHAPES)) -> None:
        super().__init__()
        self.targets, self.curvatures = {}, {}
        random = torch.Generator().manual_seed(1)
        for name, shape in self.SHAPES.items():
            chosen = torch.randint(len(levels), shape, generator=random)
            self.targets[name] = torch.tensor(levels, dtype=torch.float64)[chosen]
            self.curvatures[name] = 0.5 + torch.rand(shape, generator=random, dtype=torch.float64)
        for name in order:
            start = torch.rand(self.SHAPES[name], generator=random, dtype=torch.float64) - 0.5
            self.register_parameter(name, nn.Parameter(start))

    def loss(self) -> Tensor:
        """Return the toy loss of the present weights; 0 is the least."""
        parts = [(self.curvatures[n] * (w - self.targets[n]) ** 2).sum() for n, w in self.named_parameters()]
        return torch.stack(parts).sum() / 2


def seed_cpu(seed: int) -> None:
    """Seed the CPU's generator only: `torch.manual_seed` takes milliseconds for devices that are not used."""
    torch.default_generator.manual_seed(seed)


class Contract:
    """The part of a contract that does not depend on what kind of part is tested.

    Attributes:
        part: the class under test.
        settings: how it is built, by keyword; the defaults if nothing is said.
        level_sets: those that every check is made with.
        labelling: settings of the labelling beside the levels, such as a scale that the part needs.
    """

    part: ClassVar[type[Any]]
    settings: ClassVar[Mapping[str, Any]] = {}
    level_sets: ClassVar[Sequence[Sequence[float] | None]] = LEVEL_SETS
    labelling: ClassVar[Mapping[str, Any]] = {}
    supplied: ClassVar[Sequence[str]] = ()  # what the framework gives, so that gin may not

    @property
    def gin_name(self) -> str | None:
        """Its name in gin files; None for a part that is not meant for them."""
        return self.part.__name__

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make every check that takes `levels` for each level set."""
        if "levels" in metafunc.fixturenames:
            names = ["no levels" if levels is None else f"{len(levels)} levels" for levels in self.level_sets]
            metafunc.parametrize("levels", self.level_sets, ids=names)

    def problem(
        self, levels: Sequence[float] | None, order: Sequence[str] = tuple(Quadratic.SHAPES), **labelling: Any
    ) -> Any:
        """Return a toy network and its labelling, the same at every call."""
        seed_cpu(0)
        model = Quadratic(levels or (-1, 1), order)
        return model, Labelling(model, None if levels is None else list(levels), **{**self.labelling, **labelling})

    def test_gin_files_can_name_it_and_cannot_bind_what_the_framework_supplies(self) -> None:
        name = self.gin_name
        if name is None:
            return
        with isolated_gin():
            gin.clear_config()
            assert gin.get_configurable(name) is self.part, f"gin knows another {name}"
            for parameter in self.supplied:
                with pytest.raises(ValueError, match=re.escape(parameter)):
                    gin.parse_config(f"{name}.{parameter} = 1")
            for parameter in self._settings_of_gin():
                gin.parse_config(f"{name}.{parameter} = None")

    def test_a_setting_of_a_wrong_type_is_refused_by_name(self) -> None:
        for parameter in self._settings_of_gin():
            with pytest.raises(BadSetting, match=re.escape(f"{self.gin_name}.{parameter}")):
                self.build(**{**self.settings, parameter: _Wrong()})

    def build(self, **settings: Any) -> Any:
        """Build the part with other settings, on a toy problem."""
        raise NotImplementedError

    def _settings_of_gin(self) -> list[str]:
        if self.gin_name is None:
            return []
        parameters = inspect.signature(self.part).parameters.values()
        return [
            p.name
            for p in parameters
            if p.name not in self.supplied and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]


class _Wrong:
    """Nothing that any setting could take."""
