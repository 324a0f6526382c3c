"""The settings of a topic, checked. They are kept in its manifest, so everybody has the same."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Final, TypeVar

from segue.delivery.rules import check_count, check_seconds
from segue.errors import InvalidArgument
from segue.log.layout import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from segue.values import dataclass

PARTITIONS_DEFAULT: Final = 1
PARTITIONS_MAX: Final = 4096
SEGMENT_SECONDS_MIN: Final = 0.001
TOMBSTONE_SECONDS_DEFAULT: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """How a topic keeps what it holds. Durations are seconds.

    Without limits only what every reader and group has left behind may be deleted, and nothing
    while there is none of them. The limits delete what readers still want, and tell them so with
    OffsetTrimmed.
    """

    keep_seconds: float | None = None
    """Segments whose last record is older may go."""
    keep_bytes: int | None = None
    """The oldest segments of a partition go until it takes up no more than this."""
    lag_max: int | None = None
    """A reader or group further behind than this many records holds back no more than these."""
    clean_on_roll: bool | None = None
    """Whether a partition is cleaned each time it begins a segment; if not said, then whenever
    there is a limit. `Topic.clean` and `segue topic clean` clean at any time."""
    segment_bytes: int | None = None
    segment_seconds: float | None = None
    """After how long a segment is closed even if it is not full."""
    tombstone_seconds: float = TOMBSTONE_SECONDS_DEFAULT
    """How long compaction keeps a tombstone, so that slow readers learn of it."""

    def __post_init__(self) -> None:
        if self.keep_seconds is not None:
            check_seconds("keep_seconds", self.keep_seconds, 0)
        if self.segment_seconds is not None:
            check_seconds("segment_seconds", self.segment_seconds, SEGMENT_SECONDS_MIN)
        check_seconds("tombstone_seconds", self.tombstone_seconds, 0)
        check_count("keep_bytes", self.keep_bytes, least=0)
        check_count("lag_max", self.lag_max, least=0)
        check_count(
            "segment_bytes", self.segment_bytes, least=SEGMENT_BYTES_MIN, most=SEGMENT_BYTES_MAX
        )
        if self.clean_on_roll is not None and type(self.clean_on_roll) is not bool:
            raise InvalidArgument(f"clean_on_roll must be true or false: {self.clean_on_roll!r}")

    @property
    def has_limits(self) -> bool:
        """Whether anything may be deleted that a reader still wants."""
        return not (self.keep_seconds is None and self.keep_bytes is None and self.lag_max is None)

    @property
    def cleans_on_roll(self) -> bool:
        return self.has_limits if self.clean_on_roll is None else self.clean_on_roll

    def tightened(
        self, *, keep_seconds: float | None, keep_bytes: int | None, lag_max: int | None
    ) -> "TopicRules":
        """Return rules with the stricter of each limit and the one given here."""
        asked = TopicRules(keep_seconds=keep_seconds, keep_bytes=keep_bytes, lag_max=lag_max)
        return replace(
            self,
            keep_seconds=_stricter(asked.keep_seconds, self.keep_seconds),
            keep_bytes=_stricter(asked.keep_bytes, self.keep_bytes),
            lag_max=_stricter(asked.lag_max, self.lag_max),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the rules as the manifest keeps them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "TopicRules":
        """Return the rules that `to_dict` gave, also those of an older or newer version."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})  # type: ignore[arg-type]


Limit = TypeVar("Limit", int, float)


def _stricter(asked: Limit | None, ruled: Limit | None) -> Limit | None:
    limits = [limit for limit in (asked, ruled) if limit is not None]
    return min(limits, default=None)
