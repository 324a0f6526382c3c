"""What a stream does to take part, and Segue's: a topic that works in this process.

Each record has one of a thousand keys, and a value. Events and pairs are made while preparing.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final, Protocol

from benchmarks.lineup import Store
from benchmarks.race import Job
from benchmarks.stores import BATCH_RECORDS, require_all
from segue import Event, Member, TopicReader
from segue.stores.opening import open_directory

TOPIC: Final = "bench"
KEYS: Final = tuple(b"key-%06d" % number for number in range(BATCH_RECORDS))
KEY_BYTES: Final = len(KEYS[0])
MEMBER_SECONDS: Final = 3600
"""Nobody is taken for dead because the others have their turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to read what was preloaded, from its beginning."""

    name: str
    prepare: Callable[[int], Job]
    """Gets a number of batches of a thousand and returns the job that reads as many."""
    whole: bool = False
    """Whether it can only read all there is."""


class Streaming(Store, Protocol):
    """What every contestant can do."""

    def produce(self, values: Sequence[bytes]) -> Job:
        """Return the job that appends each value for itself."""
        ...

    def produce_batches(self, batch: list[bytes], count: int) -> Job:
        """Return the job that appends the batch `count` times."""
        ...

    def plain(self) -> list[Way]:
        """Return the ways to read without saving a place."""
        ...

    def saving(self) -> list[Way]:
        """Return the ways that save their place after each thousand."""
        ...

    def arrow(self) -> list[Way]:
        """Return the ways to get Arrow tables."""
        ...


class SegueTopic:
    """A topic of a Segue store."""

    def __init__(self, path: Path, *, durable: bool, exclusive: bool, partitions: int = 1) -> None:
        self._closing = ExitStack()
        store = open_directory(path, sync="always" if durable else "os", exclusive=exclusive)
        self._closing.callback(store.close)
        self._topic = store.topic(TOPIC, partitions=partitions)

    def produce(self, values: Sequence[bytes]) -> Job:
        append, pairs = self._topic.append, keyed(values)

        def job() -> None:
            for key, value in pairs:
                append(value, key=key)

        return job

    def produce_batches(self, batch: list[bytes], count: int) -> Job:
        append_many = self._topic.append_many
        events = [Event(value=value, key=key) for key, value in keyed(batch)]

        def job() -> None:
            for _ in range(count):
                append_many(events)

        return job

    def plain(self) -> list[Way]:
        return [Way(name="records()", prepare=self._records)]

    def _records(self, count: int) -> Job:
        def job() -> None:
            seen = 0
            for _ in self._topic.records(max_records=count * BATCH_RECORDS):
                seen += 1
            require_all(seen, count * BATCH_RECORDS)

        return job

    def saving(self) -> list[Way]:
        reader = self._closing.enter_context(self._topic.reader(TOPIC))
        member = self._closing.enter_context(self._topic.group(TOPIC).join(ttl=MEMBER_SECONDS))

        def by_reader(count: int) -> Job:
            reader.seek("earliest")
            return _polls(reader, count)

        def by_member(count: int) -> Job:
            member.seek(dict.fromkeys(member.assignment, 0))
            return _polls(member, count)

        return [
            Way(name="poll, commit", prepare=by_reader),
            Way(name="group poll, commit", prepare=by_member),
        ]

    def arrow(self) -> list[Way]:
        reader = self._closing.enter_context(self._topic.reader(f"{TOPIC}-tables"))

        def by_reader(count: int) -> Job:
            reader.seek("earliest")

            def job() -> None:
                for _ in range(count):
                    require_all(len(reader.poll_table(BATCH_RECORDS)), BATCH_RECORDS)

            return job

        return [
            Way(name="tables()", prepare=self._tables, whole=True),
            Way(name="poll_table", prepare=by_reader),
        ]

    def _tables(self, count: int) -> Job:
        def job() -> None:
            rows = sum(len(table) for table in self._topic.tables())
            require_all(rows, count * BATCH_RECORDS)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.produce_batches(batch, count // len(batch))()

    def close(self) -> None:
        self._closing.close()


def _polls(reader: TopicReader | Member, count: int) -> Job:
    """Return the job that polls and commits, going on where `reader` is now."""
    reader.commit()  # So that none of those that are timed goes back.

    def job() -> None:
        for _ in range(count):
            records = reader.poll(BATCH_RECORDS)
            reader.commit()
            require_all(len(records), BATCH_RECORDS)

    return job


def keyed(values: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the values, each with one of a thousand keys."""
    return list(zip(cycle(KEYS), values, strict=False))
