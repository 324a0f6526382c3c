"""Where to begin to read, which partitions, and how much, as it is sent.

A start is `"earliest"`, `"latest"`, an offset, offsets by partition as `{"0": 17}`, or a time as
`{"time_us": 1700000000000000}`; for readers also `"resume"`.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Final, cast

import msgspec

from segue.delivery.topic_record import MOMENT_US_MAX, MOMENT_US_MIN, moment_us
from segue.errors import InvalidArgument
from segue.log.record import datetime_from
from segue.stores.http.wire.numbers import whole_number
from segue.stores.topic_contract import Partitions, ReaderStart, Start

TIME_US: Final = "time_us"
LIMIT_MAX: Final = (1 << 53) - 1
"""As many as every reader of JSON can count."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]
StartJson = str | int | dict[str, int]


def start_json(start: ReaderStart, *, may_resume: bool = False) -> StartJson:
    """Return where to begin as it is sent. Raises InvalidArgument for what is no start."""
    given: object = start
    if isinstance(given, str):
        if given in ("earliest", "latest") or (may_resume and given == "resume"):
            return given
    elif isinstance(given, datetime):
        return {TIME_US: moment_us(given, name="start")}
    elif isinstance(given, Mapping):
        if all(type(number) is int for pair in given.items() for number in pair):
            return {str(partition): offset for partition, offset in given.items()}
    elif type(given) is int:
        return given
    raise InvalidArgument(
        f"start must be earliest, latest, a datetime, an offset or offsets: {start!r}"
    )


def start_from(said: StartJson) -> ReaderStart:
    """Return where to begin. Raises InvalidArgument."""
    if isinstance(said, int):
        return said
    if isinstance(said, str):
        if said in ("earliest", "latest", "resume"):
            return cast("ReaderStart", said)
        raise InvalidArgument(f"start must be earliest, latest, an offset or offsets: {said!r}")
    if TIME_US in said:
        time_us = said[TIME_US]
        if len(said) > 1 or not MOMENT_US_MIN <= time_us <= MOMENT_US_MAX:
            raise InvalidArgument(f"no such time: {said}")
        return datetime_from(time_us)
    return {
        whole_number(partition, what="a partition"): offset for partition, offset in said.items()
    }


def start_in_words(text: str) -> StartJson:
    """Return what a start says that stands in a query: `latest`, `17`, `0:17,1:3`, `time_us:…`."""
    if text.removeprefix("-").isdecimal():
        return whole_number(text, what="an offset")
    if ":" not in text:
        return text
    pairs = [pair.partition(":") for pair in text.split(",")]
    return {name: whole_number(number, what="an offset of 0:17,1:3") for name, _, number in pairs}


def words_of_places(places: Mapping[int, int]) -> str:
    """Return offsets by partition as they stand in a query."""
    return ",".join(f"{partition}:{offset}" for partition, offset in places.items())


def partitions_json(partitions: Partitions) -> list[int] | None:
    """Return which partitions are meant as it is sent. Raises InvalidArgument."""
    if partitions is None:
        return None
    given: object = partitions
    if not isinstance(given, Collection) or isinstance(given, str | bytes):
        raise InvalidArgument(f"partitions must be several numbers, as [0]: {partitions!r}")
    return [partition_json(partition) for partition in partitions]


def limit_json(limit: int | None) -> int | None:
    """Return a limit that was checked as it is sent."""
    return None if limit is None else min(limit, LIMIT_MAX)


def partition_json(partition: int) -> int:
    """Return a partition's number. Raises InvalidArgument for what is none."""
    if type(partition) is not int or partition < 0:
        raise InvalidArgument(f"there is no partition {partition!r}")
    return partition


def start_without_resume(said: StartJson) -> Start:
    """Return where to begin, for what has nothing to resume. Raises InvalidArgument."""
    start = start_from(said)
    if start == "resume":
        raise InvalidArgument("only a reader with a name can resume")
    return start
