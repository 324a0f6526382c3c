"""Reading on from an offset, across segments, checked: what every reader is built on."""

import logging

from segue.errors import CorruptRecord, CorruptSegment, Damage
from segue.log.horizon import Horizon
from segue.log.layout import Offset
from segue.log.options import Damaged, check_on_damage
from segue.log.record import Record
from segue.log.segment import CHECK_AHEAD_ITEMS, SegmentView

logger = logging.getLogger(__name__)


class Cursor:
    """A place in the log. One thread only.

    `pin` keeps the segment it reads from being deleted. Without it reading goes on safely in a
    file that is gone, and the next segment may be missing.
    """

    def __init__(
        self,
        horizon: Horizon,
        offset: Offset,
        *,
        on_damage: Damaged,
        ahead_items: int = CHECK_AHEAD_ITEMS,
        pin: bool = True,
    ) -> None:
        self._horizon = horizon
        self._on_damage = check_on_damage(on_damage)
        self._ahead_items = ahead_items
        self._pin = pin
        self._view: SegmentView | None = None
        self._end = Offset(0)
        self.offset = offset
        self.skipped = 0
        """How many damaged records were passed over."""

    def fetch(self, count_max: int, stop: Offset | None = None) -> list[Record]:
        """Return the next records, up to `count_max` and before `stop`; none if there are none.

        Raises OffsetTrimmed, and CorruptRecord or CorruptSegment unless damage is skipped.
        """
        while True:
            latest = self._horizon.next_offset()
            if stop is not None and stop < latest:
                latest = stop
            if self.offset >= latest:
                return []
            span = self.span(latest)
            if span is None:
                continue
            view, index, last = span
            last = min(last, index + count_max)
            records = view.records(index, last)
            self.offset = Offset(view.first_offset + last)
            if records:
                return records

    def span(self, latest: Offset) -> tuple[SegmentView, int, int] | None:
        """Return a checked run of slots at the cursor, or None after passing over damage."""
        try:
            return self._span(latest)
        except Damage:
            self.close()
        try:
            return self._span(latest)  # It may have been repaired since it was mapped.
        except Damage as damage:
            self.close()
            self._pass_over(damage)
            return None

    def _span(self, latest: Offset) -> tuple[SegmentView, int, int]:
        view = self._enter(self.offset)
        if self.offset >= self._end:
            self._report_gap(view)
        first = view.first_offset
        index = self.offset - first
        stop = view.check(index, self._end - first, self._ahead_items)
        return view, index, min(stop, latest - first)

    def _enter(self, offset: Offset) -> SegmentView:
        """Return the segment that holds `offset`, mapped and pinned."""
        view = self._view
        if view is not None and view.first_offset <= offset:
            if offset < self._end:
                return view
            self._end = self._horizon.end_of(view)
            if offset < self._end:
                return view
        self.close()
        view = self._view = self._horizon.open_view(offset)
        if self._pin:
            view.pin()
        self._end = self._horizon.end_of(view)
        return view

    def _report_gap(self, view: SegmentView) -> None:
        """Say that the segment which should follow `view` is missing or unreadable."""
        self._horizon.require(self.offset)
        following = self._horizon.following(self.offset)
        upto = "" if following is None else f" to {following - 1}"
        raise CorruptSegment(
            path=view.path.parent, reason=f"no readable segment holds offsets {self.offset}{upto}"
        )

    def _pass_over(self, damage: Damage) -> None:
        if self._on_damage == "raise":
            raise damage
        if isinstance(damage, CorruptRecord):
            resume = Offset(damage.last_offset + 1)
        else:
            following = self._horizon.following(self.offset)
            resume = self._horizon.next_offset() if following is None else following
        logger.warning("skipped damage from=%d to=%d reason=%s", self.offset, resume, damage)
        self.skipped += resume - self.offset
        self.offset = resume

    def close(self) -> None:
        """Let go of the segment."""
        if self._view is not None:
            self._view.close()
            self._view = None
