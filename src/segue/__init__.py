"""Segue: a durable segmented queue for Python. These are its public names."""

from segue import errors
from segue.errors import SegueError
from segue.log import Log, Reader, Record

__version__ = "0.1.0"

__all__ = ["Log", "Reader", "Record", "SegueError", "__version__", "errors"]
