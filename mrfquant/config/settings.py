"""How a part of the framework declares its settings: a typed signature, checked when the part is built.

    @configurable
    class StepDecay:
        def __init__(self, interval: Count, scale: Positive) -> None: ...

makes `StepDecay` a name that gin files can use, and a wrong type or an impossible value, from gin or from
Python, is a `BadSetting` that says which parameter, what was given and what was expected.
"""

import contextlib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, overload

import gin
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from mrfquant.config.gin_internals import registered_as
from mrfquant.errors import BadInput, BadSetting

T = TypeVar("T")
Part = TypeVar("Part", bound=Callable[..., Any])
UNIONS = (types.UnionType, typing.Union)


@dataclass(frozen=True)
class Check:
    """A condition on a value beyond its type, with the words for what it asks."""

    holds: Callable[[Any], bool]
    expected: str


Count = Annotated[int, Check(lambda v: v > 0, "a whole number above 0")]
"""A whole number above 0."""
Whole = Annotated[int, Check(lambda v: v >= 0, "a whole number of at least 0")]
Seed = Annotated[int, Check(lambda v: 0 <= v < 2**63, "a whole number from 0 to 2^63 - 1")]
Positive = Annotated[float, Check(lambda v: 0 < v < math.inf, "a finite number above 0")]
"""A finite number above 0."""
NonNegative = Annotated[float, Check(lambda v: 0 <= v < math.inf, "a finite number of at least 0")]
"""A finite number of at least 0."""
Fraction = Annotated[float, Check(lambda v: 0 <= v <= 1, "a number between 0 and 1")]
"""A number between 0 and 1."""
Damping = Annotated[float, Check(lambda v: 0 <= v < 1, "a number from 0 up to but not 1")]


def makes(kind: type, words: str) -> Check:
    """Check that a setting names a part to be built later: a class of that kind, or a function that makes one."""
    return Check(lambda v: issubclass(_product(v) or kind, kind), words)


def configured(part: Callable[..., T], /, **supplied: Any) -> T:
    """Return the part, built with what is given here and the settings that gin has for it."""
    return part(**supplied)


def built(binding: str, value: Any, kind: type[T], words: str) -> T:
    """Return what a recipe has made, refused unless it is of its kind."""
    if not isinstance(value, kind):
        raise BadSetting(binding, value, words)
    return value


def _product(value: Any) -> type | None:
    """Return the class that a recipe makes, as far as it can be known without building it."""
    if inspect.isclass(value):
        return value
    try:
        made = typing.get_type_hints(inspect.unwrap(value)).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return made if inspect.isclass(made) else None


@overload
def configurable(part: Part, *, supplied: Sequence[str] = ()) -> Part: ...
@overload
def configurable(*, supplied: Sequence[str] = ()) -> Callable[[Part], Part]: ...
def configurable(part: Any = None, *, supplied: Sequence[str] = ()) -> Any:
    """Register a class or function with gin under its own name and check the settings it is built with.

    Args:
        supplied: parameters that the framework passes itself; a gin file that binds one is refused.
    """
    if part is None:
        return functools.partial(configurable, supplied=supplied)
    if inspect.isclass(part):
        above = getattr(part.__mro__[1].__init__, "hints", dict)  # type: ignore[misc]
        part.__init__ = _checked(part.__init__, supplied, _inherited(part), above)  # type: ignore[method-assign]
    else:
        part = _checked(part, supplied)
    plain = part.__init__
    if twins := [s for s in registered_as(part.__name__) if s != f"{part.__module__}.{part.__name__}"]:
        raise BadInput(f"{part.__module__}.{part.__name__} has the name of {twins[0]}: give it another")
    with gin.unlock_config():  # a module may be imported after a configuration was read
        registered = gin.configurable(part, denylist=list(supplied) or None)
    if inspect.isclass(part):
        _bind_to_itself_alone(part, plain)
    return registered


def checked(function: Part) -> Part:
    """Check the settings that a function is called with, or a class built with, against the types in its signature."""
    return _checked(function, ())  # type: ignore[return-value]


def _bind_to_itself_alone(part: type, plain: Callable[..., None]) -> None:
    """Keep gin's bindings of a class from reaching its subclasses, which hand on what they want it to have."""
    bound = part.__init__  # type: ignore[misc]

    @functools.wraps(bound)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        (bound if type(self) is part else plain)(self, *args, **kwargs)

    part.__init__ = __init__  # type: ignore[misc]


def _inherited(part: type) -> list[inspect.Parameter]:
    """Return the keyword-only parameters that a constructor with **settings hands on to its parent's."""
    if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(part.__init__).parameters.values()):  # type: ignore[misc]
        return []
    parent = inspect.signature(part.__mro__[1].__init__)  # type: ignore[misc]
    return [p for p in parent.parameters.values() if p.kind is p.KEYWORD_ONLY]


def _checked(
    function: Callable[..., Any],
    supplied: Sequence[str],
    inherited: Sequence[inspect.Parameter] = (),
    above: Callable[[], dict[str, Any]] = dict,
) -> Callable[..., Any]:
    """Return a function that checks its settings, and those that it hands on, whose types `above` gives."""
    signature = inspect.signature(function)
    if inherited:
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in own}
        signature = signature.replace(parameters=[*own, *(p for p in inherited if p.name not in names)])

    closed = all(p.kind is not p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        hints = wrapper.hints()  # type: ignore[attr-defined]
        name = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
        if unknown := kwargs.keys() - signature.parameters.keys() - {"self"} if closed else None:
            known = [n for n in signature.parameters if n not in ("self", *supplied)]
            raise BadInput(f"{name} has no setting {min(unknown)!r}: it has {', '.join(known)}")
        given = signature.bind_partial(*args, **kwargs).arguments
        for parameter, declared in signature.parameters.items():
            if declared.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            if parameter not in given and declared.default is inspect.Parameter.empty:
                if parameter in supplied:
                    raise BadInput(f"{name} needs {parameter}: pass it, or, in gin, name @{name} without parentheses")
                raise BadInput(f"{name}.{parameter} is needed and not set")
            if parameter in given and parameter in hints:
                _check(f"{name}.{parameter}", given[parameter], hints[parameter])
        return function(*args, **kwargs)

    handed_on = {p.name for p in inherited}

    def hints() -> dict[str, Any]:
        # Unwrapped: a class may inherit the __init__ of one that was registered before it.
        own = _hints(inspect.unwrap(function))
        return {**{name: hint for name, hint in above().items() if name in handed_on}, **own}

    wrapper.hints = hints  # type: ignore[attr-defined]
    wrapper.__signature__ = signature  # type: ignore[attr-defined]  # gin reads the defaults from it
    return wrapper


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters; those whose names only a type checker imports are left out."""
    hints: dict[str, Any] = {}
    for parameter, annotation in getattr(function, "__annotations__", {}).items():  # object.__init__ has none
        one = types.SimpleNamespace(__annotations__={parameter: annotation})
        with contextlib.suppress(NameError):
            hints |= typing.get_type_hints(one, function.__globals__, include_extras=True)
    return hints


def _check(binding: str, value: Any, hint: Any) -> None:
    checks = _conditions(hint)
    try:
        check_type(value, hint, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
        if isinstance(value, bool) and checks:  # bool is an int to Python, but True iterations are a mistake
            raise TypeCheckError("is a bool")
    except TypeCheckError:
        expected = checks[0].expected if checks else _type_in_words(hint)
        if inspect.isclass(value) or inspect.isfunction(value):
            expected += f" (@{value.__name__} names the recipe: write @{value.__name__}() to build it)"
        raise BadSetting(binding, value, expected) from None
    for check in checks if value is not None else ():
        if not check.holds(value):
            raise BadSetting(binding, value, check.expected)


def _conditions(hint: Any) -> list[Check]:
    """Return what a type asks beyond itself; of an optional one, what it asks if there is a value."""
    if typing.get_origin(hint) in UNIONS:
        return [check for member in typing.get_args(hint) for check in _conditions(member)]
    return [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Check)]


def _type_in_words(hint: Any) -> str:
    """Return the type in the words of a message: 'str', 'Schedule', \"'auto' or 'float32'\"."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(a) for a in arguments)
    if inspect.isclass(hint) and not arguments:
        return {bool: "True or False", type(None): "None"}.get(hint, hint.__name__)
    if arguments and typing.get_origin(hint) is Annotated:
        return _type_in_words(arguments[0])
    if typing.get_origin(hint) in UNIONS:
        return " or ".join(_type_in_words(a) for a in arguments)
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
