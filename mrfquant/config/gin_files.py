"""Reading gin files for people: every mistake is told with its place, and no binding is silently without effect."""

import ast
import difflib
import inspect
import logging
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gin
from gin.config_parser import BindingStatement, ConfigParser, ImportStatement, IncludeStatement, ParserDelegate

from mrfquant.config import gin_internals
from mrfquant.config.plugins import import_installed_plugins, import_plugin
from mrfquant.errors import BadInput

# What gin raises for mistakes in a file.
MISTAKES = (
    *(SyntaxError, ValueError, OSError, ImportError, RuntimeError, TypeError, AttributeError, KeyError),
    *(tokenize.TokenError, MemoryError),
)
MAX_GIN_BYTES = 2**22  # bytes of a gin file
PACKAGE = Path(__file__).parent.parent
# The configs lie beside the package in a checkout and inside it when it was installed from a wheel; beside it is then
# the library gin.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "gin"


class Config:
    """The configuration read from a gin file, `--set` bindings and `--import` modules; gin itself holds the values.

    Reading starts from an empty configuration. A gin file may `import` modules: it is code, run only files you trust.

    Args:
        file: the gin file; None where everything is in the bindings.
        bindings: further settings.
        imports: modules that register parts.
        trusted: whether the file may import modules. If not, those that are imported already, by `imports` or as
            installed plug-ins, are fine, and others are refused: nothing is executed because a file says so.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None,
        bindings: Sequence[str] = (),
        imports: Sequence[str] = (),
        trusted: bool = True,
    ) -> None:
        gin.clear_config()
        import_installed_plugins()
        self.file = Path("settings") if file is None else _find(Path(file))  # the name of what is all bindings
        self._trusted = trusted
        self.name = "run" if file is None else self.file.stem
        self._places: dict[str, str] = {}  # 'scope/Name.parameter' or 'macro' -> where it was bound last
        # Absolute: gin would take a relative folder for a Python package.
        gin_internals.set_search_folders([str(f.resolve()) for f in (Path(), self.file.parent, CONFIGS)])
        for module in imports:
            import_plugin(module, "--import")
            gin.parse_config(f"import {module}")  # so that the configuration as text has it
        what = f"config {_display_path(self.file)}"
        if file is not None:
            _parse(lambda: self._survey(self.file), what)
            _parse(lambda: gin.parse_config_file(str(self.file)), what)
        for binding in bindings:
            if "\n" in binding or "=" not in binding:
                raise BadInput(f"{_as_place(binding)} is not a binding: write it as --set 'Name.parameter = value'")
            _parse(lambda binding=binding: self._set(binding), _as_place(binding))
        _parse(gin.finalize, what)

    def _set(self, binding: str) -> None:
        for statement in ConfigParser(binding, _Names()):
            if not isinstance(statement, BindingStatement):
                raise BadInput(f"{_as_place(binding)} is not a binding: write it as --set 'Name.parameter = value'")
            self._places[_binding(statement.scope, statement.selector, statement.arg_name)] = _as_place(binding)
        gin.parse_config([binding])

    def text(self) -> str:
        """Return the configuration as asked for, includes expanded: a gin file of its own."""
        with gin_internals.mappings_in_their_order():
            return gin.config_str()

    def operative(self) -> str:
        """Return every parameter that was used so far with its value, defaults too: a gin file of its own."""
        with gin_internals.mappings_in_their_order():
            return gin.operative_config_str()

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Add to errors of parts built within the block where the setting they are about was bound."""
        try:
            yield
        except BadInput as error:
            sentence = str(error).split("\n  In call to configurable")[0]  # gin's addition
            about = error.binding  # 'Name.parameter', or 'Name' for all of its settings
            places = [p for name, p in self._places.items() if about and about in (name, name.rpartition(".")[0])]
            raise BadInput(f"{sentence} (bound at {', '.join(places)})" if places else sentence) from None
        except TypeError as error:
            lacking = re.search(r"No values supplied by Gin or caller for arguments: \['(.+?)'\]", str(error))
            part = re.search(r"In call to configurable '(.+?)'", str(error))
            if not lacking or not part:
                raise
            raise BadInput(
                f"{part[1]} needs {lacking[1]}: bind it, or, in gin, name @{part[1]} without parentheses"
            ) from None

    def check_all_used(self, in_files: bool = True) -> None:
        """Refuse bindings that nothing read, before the work starts; those of --set alone without `in_files`."""
        used = gin_internals.used()
        for (scope, selector), parameters in gin_internals.bound().items():
            for parameter in parameters:
                readers = [s for (s, sel), values in used.items() if sel == selector and parameter in values]
                if not any(s == scope or not scope or s.startswith(f"{scope}/") for s in readers):
                    name = scope if selector == "gin.macro" else _binding(scope, selector, parameter)
                    place = self._places.get(name, _display_path(self.file))
                    if in_files or place.startswith("--set"):
                        raise BadInput(
                            f"{name} is bound at {place}, but nothing in this run reads it: remove it, or name the "
                            "part it belongs to"
                        )

    def _survey(self, file: Path) -> None:
        """Note where everything is bound and import the modules asked for, in the order that gin will read."""
        if file.stat().st_size > MAX_GIN_BYTES:
            raise BadInput(f"{_display_path(file)} has more than {MAX_GIN_BYTES:,} bytes: give a gin file")
        with open(file) as text:
            for statement in ConfigParser(text, _Names()):
                place = f"{_display_path(file)}:{statement.location.line_num}"
                if isinstance(statement, IncludeStatement):
                    files = [Path(folder) / statement.filename for folder in gin_internals.search_folders()]
                    for found in [f for f in files if f.exists()][:1]:  # gin tells if there is none
                        if not found.is_file():
                            raise BadInput(f"{place}: {found} is no ordinary file: include a gin file")
                        self._survey(found)
                elif isinstance(statement, BindingStatement):
                    self._places[_binding(statement.scope, statement.selector, statement.arg_name)] = place
                elif isinstance(statement, ImportStatement):
                    self._import(statement.module, place)

    def _import(self, module: str, place: str) -> None:
        if module.startswith("__gin__"):
            raise BadInput(f"{place}: {module} is gin's own, and not supported: write import and the module's name")
        own = module.startswith("mrfquant.")  # which runs anyway
        if not self._trusted and not own and module not in sys.modules:
            raise BadInput(
                f"{place} asks for the module {module}, whose code would be executed: if you trust it, allow it with "
                f"--import {module}"
            )
        import_plugin(module, place)


def _as_place(binding: str) -> str:
    """Return a binding of the command line as its own place."""
    short = binding if len(binding) <= 100 else binding[:97] + "..."
    return f"--set {short!r}"


class _Names(ParserDelegate):
    """Reads references as text, whether or not there is anything of that name."""

    def configurable_reference(self, name: str, evaluate: bool) -> str:
        return name

    def macro(self, name: str) -> str:
        return name


def _binding(scope: str, selector: str, parameter: str) -> str:
    """Return 'scope/Name.parameter' without gin's modules before the name; for a macro, its bare name."""
    name = selector.rpartition(".")[2]
    return (f"{scope}/" if scope else "") + (f"{name}.{parameter}" if parameter else name)


def as_bindings(settings: Mapping[str, Any]) -> list[str]:
    """Return settings given in Python, {"Experiment.model": LeNet300}, as gin writes them: parts by their names."""
    return [f"{name} = {_as_gin(name, value)}" for name, value in settings.items()]


def _as_gin(name: str, value: Any) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        if selectors := gin_internals.registered_as(value.__name__):
            return f"@{selectors[0].rpartition('.')[2]}"
        raise BadInput(f"{name} = {value!r} is not known to gin: decorate it with mrfquant.configurable", name)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value.startswith(("@", "%")):  # a part or a macro, as in a gin file
        return value
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        raise BadInput(
            f"{name} = {repr(value)[:60]} cannot be written to a gin file: give plain values, parts, or '@Name()'", name
        ) from None
    return repr(value)


def named_part(name: str, kind: type) -> Any:
    """Return the part of a kind that gin knows by a name."""
    try:
        found = gin.get_configurable(name)
    except ValueError:
        found = None
    if not inspect.isclass(found) or not issubclass(found, kind):
        known = [n for n in _known_names() if n]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "import the module that has it with --import"
        raise BadInput(f"there is no {kind.__name__} {name!r}: {hint}")
    return found


def nested_settings() -> dict[str, dict[str, Any]]:
    """Return the operative settings as {"scope/Name": {parameter: value}}, values as gin writes them."""
    settings: dict[str, dict[str, Any]] = {}
    for (scope, selector), parameters in gin_internals.used().items():
        if parameters and selector != "gin.macro":
            name = "/".join(filter(None, [scope, selector.rpartition(".")[2]]))
            plain = (bool, int, float, str, type(None))
            settings[name] = {k: v if isinstance(v, plain) else repr(v) for k, v in parameters.items()}
    return settings


def shipped(file: Path) -> Path | None:
    """Return the file, or one of the package's own by its path from the top or its bare name; None if there is none."""
    inside = file.relative_to("gin") if file.parts[:1] == ("gin",) else file
    candidates = (file, CONFIGS.parent / file, CONFIGS / inside, CONFIGS / f"{inside}.gin")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _find(file: Path) -> Path:
    if found := shipped(file):
        return found
    known = {path.stem: path.relative_to(CONFIGS).as_posix() for path in sorted(CONFIGS.rglob("*.gin"), reverse=True)}
    near = difflib.get_close_matches(file.stem, known, n=1)
    hint = f"did you mean gin/{known[near[0]]}?" if near else f"the configurations of the package are in {CONFIGS}"
    raise BadInput(f"there is no config file {file}: {hint}")


def _parse(parse: Any, what: str) -> None:
    """Run gin's parser and turn its errors into one sentence that keeps the place."""
    logging.disable(logging.ERROR)  # gin logs each search path without the file as an error, found or not
    try:
        parse()
    except BadInput:
        raise
    except MISTAKES as error:
        text = " ".join(str(error).split())
        found = re.search(r'In (?:file "([^"]+)"|bindings string),? line (\d+)', text)
        place = f"{_display_path(Path(found[1]))}:{found[2]}" if found and found[1] else what
        if isinstance(error, SyntaxError):
            place = f"{_display_path(Path(error.filename))}:{error.lineno}" if error.filename else what
            message = " ".join(error.msg.split())
        elif isinstance(error, RecursionError | MemoryError):
            message = "its brackets are nested too deeply"
        elif isinstance(error, tokenize.TokenError):
            message = "a bracket or a text is not closed"
        else:
            message = text[: found.start()].strip() if found else text
        if macro := re.match(r"No bindings specified for '(.+)/gin.macro'", message):
            message = f"%{macro[1]} is used and nowhere defined"
        hint = ""
        if unknown := re.match(r"No configurable matching (?:reference )?'@?(?:[^'(]*/)?([^'(]+)", message):
            near = difflib.get_close_matches(unknown[1], _known_names(), n=1)
            message = f"there is no part {unknown[1]!r}"
            hint = (
                f"did you mean {near[0]!r}? " if near else ""
            ) + "a part of your own needs its module: --import MODULE"
        raise BadInput(f"{place}: {message[:300].rstrip('.:')}{'; ' + hint if hint else ''}") from None
    finally:
        logging.disable(logging.NOTSET)


def _known_names() -> list[str]:
    return [selector.rpartition(".")[2] for selector in gin_internals.registered()]


def _display_path(path: Path) -> str:
    """Return the path from the working folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
