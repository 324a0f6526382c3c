"""Finding the App that `module:name` means, or saying exactly why there is none."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Final

from segue.errors import AppNotFound
from segue.tasks.app import App

NAME_DEFAULT: Final = "app"


def load_app(target: str) -> App:
    """Return the App called `name` in `module`, imported as from the current directory.

    Raises AppNotFound with the reason: no such module, an error in it, no such name, no App.
    """
    module_name, _, name = target.partition(":")
    name = name or NAME_DEFAULT
    if module_name.endswith(".py") or "/" in module_name:
        raise AppNotFound(
            f"{target!r} is a file; give the module as Python imports it, such as "
            f"{Path(module_name).stem}:{name}"
        )
    _have_current_directory()
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise AppNotFound(
                f"there is no module {error.name!r}; looked in {_looked_in()}"
            ) from error
        raise AppNotFound(
            f"{module_name} imports {error.name!r}, which is not installed ({_place_of(error)})"
        ) from error
    except (Exception, SystemExit) as error:
        raise AppNotFound(
            f"{module_name} cannot be imported: {type(error).__name__}: {error} "
            f"({_place_of(error)})"
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AppNotFound(f"{module_name} has no {name!r}{_apps_in(module_name)}") from None
    if not isinstance(found, App):
        raise AppNotFound(f"{target} is no App but a {type(found).__name__}")
    return found


def target_of(app: App) -> str:
    """Return what `load_app` finds an App by in another process. Raises AppNotFound."""
    for module_name, module in list(sys.modules.items()):
        if module_name in ("__main__", "__mp_main__"):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{module_name}:{name}"
    raise AppNotFound(
        "worker processes import the App by its module and name: have it at the top of a module "
        "other than the script that is run"
    )


def _have_current_directory() -> None:
    here = os.getcwd()  # noqa: PTH109 - as sys.path has it
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _looked_in() -> str:
    return f"{os.getcwd()} and {len(sys.path)} other places"  # noqa: PTH109 - as above


def _place_of(error: BaseException) -> str:
    """Return where in the imported code an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "importlib" not in frame.filename]
    frame = ours[-1] if ours else frames[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _apps_in(module_name: str) -> str:
    names = [
        name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, App)
    ]
    return f"; its Apps are: {', '.join(names)}" if names else "; it has no App at all"
