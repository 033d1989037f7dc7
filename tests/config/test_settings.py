"""A part's signature is its contract: wrong types and impossible values are named, from gin and from Python."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import gin
import pytest

from mrfquant.config.gin_files import Config
from mrfquant.config.gin_internals import isolated_gin
from mrfquant.config.settings import Count, Fraction, NonNegative, Positive, configurable
from mrfquant.errors import BadInput, BadSetting

if TYPE_CHECKING:
    from elsewhere import Unknown


@configurable(supplied=["network"])
class Part:
    def __init__(
        self,
        network: str,
        count: Count = 1,
        rate: Positive = 0.5,
        kind: Literal["soft", "hard"] = "soft",
        inner: "Part | None" = None,
        share: Fraction = 0.5,
        decay: NonNegative = 0.0,
        limit: Count | None = None,
        steps: Sequence[int] = (),
        later: "Unknown | None" = None,
    ):
        self.count = count


@configurable
def recipe(count: Count):
    return count


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "Part.count = 0, expected a whole number above 0"),
        ({"count": True}, "Part.count = True, expected a whole number above 0"),
        ({"count": 2.5}, "Part.count = 2.5, expected a whole number above 0"),
        ({"rate": float("nan")}, "Part.rate = nan, expected a finite number above 0"),
        ({"rate": "fast"}, "Part.rate = 'fast', expected a finite number above 0"),
        ({"kind": "firm"}, "Part.kind = 'firm', expected 'soft' or 'hard'"),
        ({"share": 1.5}, "Part.share = 1.5, expected a number between 0 and 1"),
        ({"limit": 0}, "Part.limit = 0, expected a whole number above 0"),
        ({"limit": True}, "Part.limit = True, expected a whole number above 0"),
        ({"steps": [1, "x"]}, r"Part.steps = \[1, 'x'\], expected Sequence\[int\]"),
        ({"decay": float("inf")}, "Part.decay = inf, expected a finite number of at least 0"),
    ],
)
def test_impossible_values_are_named_with_what_was_expected(settings, message):
    with pytest.raises(BadSetting, match=message.replace("(", r"\(")):
        Part("net", **settings)


def test_a_recipe_where_an_object_belongs_is_told_apart():
    with pytest.raises(BadSetting, match=r"write @Part\(\) to build it"):
        Part("net", inner=Part)


def test_optional_settings_may_be_left_open():
    assert Part("net", limit=None)
    assert Part("net", limit=3)


def test_types_that_only_a_type_checker_imports_are_not_checked():
    assert Part("net", later=3)


def test_an_int_is_a_fine_float():
    assert Part("net", rate=1, decay=0)


def test_gin_supplies_settings_and_they_are_checked_too():
    gin.parse_config("Part.count = 7")
    assert Part("net").count == 7
    gin.parse_config("Part.count = -7")
    with pytest.raises(BadSetting) as error:
        Part("net")
    assert error.value.binding == "Part.count"


def test_what_the_framework_supplies_cannot_be_bound():
    with pytest.raises(ValueError, match="network"):
        gin.parse_config("Part.network = 'mine'")


def test_a_part_may_inherit_its_settings_from_another():
    @configurable(supplied=["network"])
    class Heir(Part):
        pass

    assert Heir("net", count=3).count == 3
    with pytest.raises(BadSetting, match=r"Heir\.count = 0"):
        Heir("net", count=0)
    gin.parse_config("Heir.count = 5")
    assert Heir("net").count == 5


def test_missing_settings_and_needless_parentheses_are_told():
    with pytest.raises(BadInput, match=r"recipe\.count is needed and not set"):
        recipe()
    with pytest.raises(BadInput, match="name @Part without parentheses"):
        Part()


def test_defaults_reach_the_operative_config():
    Part("net")
    assert "Part.kind = 'soft'" in gin.operative_config_str()


def test_parts_can_be_registered_after_a_configuration_was_read(tmp_path):
    with isolated_gin():
        (tmp_path / "some.gin").write_text("Part.count = 2\n")
        Config(tmp_path / "some.gin")

        @configurable
        class RegisteredLate:
            def __init__(self, size: Count = 1) -> None:
                self.size = size

        assert gin.config_is_locked()
        Config(tmp_path / "some.gin", ["RegisteredLate.size = 3"])
        assert RegisteredLate().size == 3
