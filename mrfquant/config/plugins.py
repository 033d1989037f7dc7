"""Parts from elsewhere: modules that register solvers, energies, networks, data sets of your own when imported.

A module is found by `import my_solver` in a gin file, by `--import my_solver`, or, once installed, by itself: its
package names it as an entry point of the group `mrfquant.plugins`. Modules in the working folder count as installed
for commands.
"""

import functools
import importlib
import os
import sys
import traceback
from importlib import metadata

from mrfquant.errors import BadInput

GROUP = "mrfquant.plugins"


def import_plugin(module: str, by: str) -> None:
    """Import a module; what goes wrong is told in a sentence that starts with who wanted it."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise BadInput(f"{by}: {module!r} is not the name of a module: write my_solver for the file my_solver.py")
    if os.getcwd() not in sys.path:  # it is when a command is run with `python -m`
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except BadInput as error:
        raise BadInput(f"{by}: {error}") from None
    except ModuleNotFoundError as error:
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise BadInput(f"{by}: {module} imports {error.name}, which is not installed") from None
        raise BadInput(
            f"{by}: there is no module {error.name!r}: run the command in the folder that holds it, or install it"
        ) from None
    except (Exception, SystemExit) as error:  # whatever a module of somebody else's raises
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        if isinstance(error, SyntaxError):
            place = f"{error.filename}:{error.lineno}"
        text = " ".join(str(error).split())
        raise BadInput(f"{by}: importing {module} ended with {type(error).__name__}: {text} ({place})") from None


@functools.cache
def import_installed_plugins() -> None:
    """Import the plug-ins of installed packages, once."""
    for entry in metadata.entry_points(group=GROUP):
        package = entry.dist.name if entry.dist else "an installed package"
        import_plugin(entry.module, f"the plug-in {entry.name!r} of {package}")
