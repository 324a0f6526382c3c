"""What a user asks of the source and the sink: names, values and what goes together.

Names are those of Spark's Kafka connector where it has the thing. Every option is looked at before
anything is opened, and one that is unknown, or means nothing where it stands, is an error.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

from segue.errors import InvalidArgument
from segue.log.layout import checked_name
from segue.log.options import Sync, SyncName
from segue.spark.places import absolute, is_server
from segue.stores.http.address import address_from as http_address_from
from segue.stores.http.address import is_http
from segue.stores.opening import TOKEN_VARIABLE
from segue.values import dataclass

Kind = Literal["topic", "queue", "dead_letters", "ring"]
ValueFormat = Literal["binary", "string", "json"]

EARLIEST: Final = -2
LATEST: Final = -1
"""As offsets in JSON, as Kafka has them."""

Where = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[str, int]]
"""An end, a time, or offsets: by name and then by partition; `""` is the only name there is."""

_WHAT: Final = ("topic", "topics", "queue", "dead_letters", "ring")
_PLACE: Final = ("url", "path", "sync", "allowNetwork", "token")
_RANGE: Final = ("startingOffsets", "startingTimestamp", "partitions", "priority")
_END: Final = ("endingOffsets", "endingTimestamp")
_SPLIT: Final = ("minPartitions", "maxRecordsPerPartition")
_ROWS: Final = ("includeHeaders", "valueFormat")
_LOSS: Final = ("failOnDataLoss", "reader")
_PACE: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)

_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""What Spark hands on with a stream, although it is not ours."""

BATCH_OPTIONS: Final = (*_WHAT, *_PLACE, *_RANGE, *_END, *_SPLIT, *_ROWS, *_LOSS)
STREAM_OPTIONS: Final = (*_WHAT, *_PLACE, *_RANGE, *_SPLIT, *_ROWS, *_LOSS, *_PACE)
WRITE_OPTIONS: Final = ("topic", "queue", *_PLACE, "writeId", *_SPARKS_OWN)
_DIRECTORY_ONLY: Final = ("sync", "allowNetwork")
_TOPIC_ONLY: Final = ("partitions", "reader")
_CONTRADICTIONS: Final = (
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("url", "path"),
)

_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
NUMBERS_MAX: Final = 1 << 16
"""How many partitions or priorities can be chosen."""
MILLISECONDS_MAX: Final = 253_402_300_799_999
MAX_TRIGGER_DELAY_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    kind: Kind
    name: str
    """Of what is read; a regular expression if `is_pattern`."""
    is_pattern: bool = False
    sync: SyncName = "always"
    allows_network: bool = False
    start: Where | None = None
    """None is what is usual: the earliest for a batch, the latest for a stream."""
    end: Where = "latest"
    partitions: frozenset[int] | None = None
    priorities: frozenset[int] | None = None
    min_partitions: int = 1
    records_max: int | None = None
    fails_on_data_loss: bool = True
    reader: str | None = None
    includes_headers: bool = False
    value_format: ValueFormat = "binary"
    offsets_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max: timedelta = field(
        default_factory=lambda: timedelta(seconds=MAX_TRIGGER_DELAY_SECONDS)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    kind: Literal["topic", "queue"]
    name: str
    sync: SyncName = "always"
    allows_network: bool = False
    write_id: str | None = None


def read_options(options: Mapping[str, str], *, is_stream: bool | None) -> ReadOptions:
    """Return what `spark.read` or `spark.readStream` was given; None is either of them.

    Raises InvalidArgument.
    """
    valid: Collection[str] = STREAM_OPTIONS if is_stream else BATCH_OPTIONS
    if is_stream is None:
        valid = {*STREAM_OPTIONS, *BATCH_OPTIONS}
    given = _Given(options, valid, of="of a stream" if is_stream else "here")
    kind, name, is_pattern = given.what()
    if kind != "topic":
        given.refuse(_TOPIC_ONLY, f"means nothing for a {kind}")
    if kind in {"topic", "ring"}:
        given.refuse(("priority",), f"means nothing for a {kind}")
    reader = given.text("reader")
    if reader is not None:
        checked_name(reader)
    if is_stream is False and reader is not None:
        given.refuse(("startingOffsets", "startingTimestamp"), "contradicts reader")
    if is_stream and kind == "topic" and reader is None:
        raise InvalidArgument(
            "a stream needs a name, by which retention knows what it still needs: "
            'option("reader", "my-stream")'
        )
    return ReadOptions(
        url=given.url(),
        token=given.token(),
        kind=kind,
        name=name,
        is_pattern=is_pattern,
        sync=given.sync(),
        allows_network=given.flag("allowNetwork", default=False),
        start=given.where("starting"),
        end=given.where("ending") or "latest",
        partitions=given.numbers("partitions"),
        priorities=given.numbers("priority"),
        min_partitions=given.count("minPartitions") or 1,
        records_max=given.count("maxRecordsPerPartition"),
        fails_on_data_loss=given.flag("failOnDataLoss", default=True),
        reader=reader,
        includes_headers=given.flag("includeHeaders", default=False),
        value_format=given.value_format(),
        offsets_per_trigger_max=given.count("maxOffsetsPerTrigger"),
        bytes_per_trigger_max=given.count("maxBytesPerTrigger"),
        offsets_per_trigger_min=given.count("minOffsetsPerTrigger"),
        trigger_delay_max=given.delay("maxTriggerDelay"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return what `df.write` or `df.writeStream` was given. Raises InvalidArgument."""
    given = _Given(options, WRITE_OPTIONS, of="of a sink")
    kind, name, _ = given.what(("topic", "queue"))
    return WriteOptions(
        url=given.url(),
        token=given.token(),
        kind="queue" if kind == "queue" else "topic",
        name=name,
        sync=given.sync(),
        allows_network=given.flag("allowNetwork", default=False),
        write_id=given.text("writeId"),
    )


class _Given:
    """The options as they were given, each taken as what it must be."""

    def __init__(self, options: Mapping[str, str], valid: Collection[str], *, of: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in valid}
        unknown = sorted(set(self._values) - set(known))
        if unknown:
            raise InvalidArgument(
                f"no option {of}: {', '.join(unknown)}; "
                f"there are {', '.join(sorted(set(known.values()) - set(_SPARKS_OWN)))}"
            )
        for one, other in _CONTRADICTIONS:
            if one.lower() in self._values and other.lower() in self._values:
                raise InvalidArgument(f"give {one} or {other}, not both")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidArgument(f"option {name} is empty")
        return value

    def url(self) -> str:
        """Return where the store is, absolute: tasks may run in another directory."""
        url = self.text("url") or self.text("path")
        if url is None:
            raise InvalidArgument('where is the store? option("url", "/data/store")')
        if is_server(url):
            self.refuse(_DIRECTORY_ONLY, "means nothing for a server: its URL says such things")
            if self.text("url") is None and "@" in url:
                # Spark hides what `url` says from its plans and its page, and no other option.
                raise InvalidArgument(
                    'a URL with a login is given as option("url", …), not as path'
                )
        return absolute(url)

    def token(self) -> str | None:
        """Return what a Segue server lets us in by: as given, or what the driver has for it."""
        url = self.text("url") or self.text("path") or ""
        given = self.text("token")
        if not is_http(url):
            self.refuse(("token",), "is for http:// and https:// alone")
            return None
        token = given or os.environ.get(TOKEN_VARIABLE) or None
        http_address_from(url, token)
        return token

    def sync(self) -> SyncName:
        value = self.text("sync") or "always"
        if value not in {each.value for each in Sync}:
            raise InvalidArgument(f"sync must be always, interval or os: {value!r}")
        return value  # type: ignore[return-value]

    def what(self, names: Collection[str] = _WHAT) -> tuple[Kind, str, bool]:
        found = [name for name in names if name in self._values]
        if len(found) != 1:
            raise InvalidArgument(
                f"give exactly one of {', '.join(names)}; there "
                f"{'is none' if not found else 'are ' + ', '.join(found)}"
            )
        name = self.text(found[0])
        assert name is not None
        if found[0] == "topics":
            try:
                re.compile(name)
            except re.error as error:
                raise InvalidArgument(f"topics is no regular expression: {error}") from None
            return "topic", name, True
        checked_name(name)
        return found[0], name, False  # type: ignore[return-value]

    def refuse(self, names: Collection[str], reason: str) -> None:
        for name in names:
            if name.lower() in self._values:
                raise InvalidArgument(f"option {name} {reason}")

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or int(value) < 1:
            raise InvalidArgument(f"{name} must be a positive whole number: {value!r}")
        return int(value)

    def numbers(self, name: str) -> frozenset[int] | None:
        value = self.text(name)
        if value is None:
            return None
        numbers: set[int] = set()
        for piece in value.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", piece)
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if high < low or high - low >= NUMBERS_MAX or len(numbers) >= NUMBERS_MAX:
                raise InvalidArgument(f"{name} are numbers and ranges, as 0,3-5: {value!r}")
            numbers.update(range(low, high + 1))
        return frozenset(numbers)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            raise InvalidArgument(f"{name} must be true or false: {value!r}")
        return value.lower() == "true"

    def value_format(self) -> ValueFormat:
        value = (self.text("valueFormat") or "binary").lower()
        for name in get_args(ValueFormat):
            if value == name:
                return value  # type: ignore[return-value]
        raise InvalidArgument(f"valueFormat must be binary, string or json: {value!r}")

    def delay(self, name: str) -> timedelta:
        value = self.text(name)
        if value is None:
            return timedelta(seconds=MAX_TRIGGER_DELAY_SECONDS)
        if self.text("minOffsetsPerTrigger") is None:
            raise InvalidArgument(f"{name} means nothing without minOffsetsPerTrigger")
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidArgument(f"{name} is a time, as 500ms, 30s, 15m or 1h: {value!r}")
        try:
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        except OverflowError:
            raise InvalidArgument(f"{name} is too long: {value!r}") from None

    def where(self, which: Literal["starting", "ending"]) -> Where | None:
        moment = self.text(f"{which}Timestamp")
        if moment is not None:
            return _moment(f"{which}Timestamp", moment)
        value = self.text(f"{which}Offsets")
        if value is None:
            return None
        if value.strip().lower() in {"earliest", "latest"}:
            return "earliest" if value.strip().lower() == "earliest" else "latest"
        return _offsets(f"{which}Offsets", value)


def _moment(name: str, value: str) -> datetime:
    """Return a time given in ISO 8601 or, as Kafka has it, in milliseconds."""
    text = value.strip()
    try:
        if re.fullmatch(r"[0-9]{1,18}", text) and int(text) <= MILLISECONDS_MAX:
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(text))
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name} is a time, as 2026-01-31T12:00:00Z, or milliseconds since 1970: {value!r}"
        ) from None
    if moment.tzinfo is None:
        raise InvalidArgument(f"{name} needs a time zone, as 2026-01-31T12:00:00Z: {value!r}")
    return moment


def _offsets(name: str, value: str) -> Mapping[str, Mapping[str, int]]:
    """Return offsets given as JSON: by partition, or by name and partition."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict) and given:
        if all(isinstance(each, dict) and each for each in given.values()):
            by_name = given
        else:
            by_name = {"": given}
        pairs = [pair for each in by_name.values() for pair in each.items()]
        if all(type(offset) is int and offset >= EARLIEST for _, offset in pairs):
            return by_name
    raise InvalidArgument(
        f"{name} is earliest, latest, or offsets as "
        f'{{"orders": {{"0": 17, "1": {EARLIEST}}}}} '
        f"({EARLIEST} is the earliest, {LATEST} the latest): {value!r}"
    )
