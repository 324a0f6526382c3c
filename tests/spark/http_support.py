"""Stores behind a server of this process, and reading them without Spark's own machinery."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructField, StructType

from segue import Store
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.spark.options import read_options
from segue.spark.reading import BatchReader
from segue.spark.schema import COLUMNS, default_schema
from segue.stores.opening import open_directory

Rows = list[tuple[Any, ...]]


@contextmanager
def served(store: Store, *, tokens: Path | None = None, port: int = 0) -> Iterator[str]:
    """A server in front of a store; gives its URL."""
    with ServerThread(build_app(store, tokens=tokens, has_audit=False), port=port) as server:
        yield server.url


@contextmanager
def served_directory(path: Path, *, tokens: Path | None = None, port: int = 0) -> Iterator[str]:
    """The same for a directory."""
    with open_directory(path, sync="os") as store, served(store, tokens=tokens, port=port) as url:
        yield url


def read_rows(url: str, columns: Sequence[str] | None = None, **options: str) -> Rows:
    """Return the rows of a table as tasks read them, each with a copy of what it was given."""
    asked = read_options({"url": url, **options}, is_stream=False)
    schema = default_schema(asked)
    if columns is not None:
        known = COLUMNS[asked.kind]
        schema = StructType([StructField(name, known[name]) for name in columns])
    reader = BatchReader(asked, schema)
    rows: Rows = []
    for task in reader.partitions():
        copy, part = pickle.loads(pickle.dumps((reader, task)))
        for batch in copy.read(part):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows, key=repr)
