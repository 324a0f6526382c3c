"""A record as readers get it."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from segue.log.layout import Offset

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """One record of a log.

    A named tuple and no dataclass, against the house rule: a frozen dataclass takes longer to
    build than the record takes to read.
    """

    offset: Offset
    time_us: int
    attr: int
    payload: bytes

    @property
    def time(self) -> datetime:
        """When the record was appended, in UTC."""
        return datetime_from(self.time_us)


def datetime_from(time_us: int) -> datetime:
    """Return a time of the log as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def microseconds(moment: datetime) -> int:
    """Return `moment` as the log counts time. A naive datetime is taken as local time."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
