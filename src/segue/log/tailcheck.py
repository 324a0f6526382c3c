"""How far the last segment really goes: the judgement recovery acts on and a mere reader believes.

Pure apart from reading the mapped segment. What else is known is passed in as evidence.
"""

from segue.log import slots
from segue.log.hint import Hint
from segue.log.layout import Offset, SegmentHeader
from segue.log.segment import SegmentView
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known from outside the segments about how far they once went."""

    hint: Hint | None
    published: Offset | None
    """The published word, if the machine has not restarted since it was written."""

    def index_in(self, header: SegmentHeader) -> int:
        """Return how many records of a segment were certainly there once."""
        if self.published is not None:
            return max(0, min(header.items_max, self.published - header.first_offset))
        if self.hint is not None and self.hint.segment == header.id:
            return min(header.items_max, self.hint.index)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCheck:
    """What an unsealed segment holds."""

    valid: int
    """Slots of the valid run from the start."""
    written: int
    """Slots up to the last one that is not empty."""
    last_intact: int
    """Slots up to the end of the last intact batch, damage before it or not."""
    certain: int
    """Slots that were certainly there once."""

    @property
    def is_torn(self) -> bool:
        """Whether something lies behind the valid run."""
        return self.valid < max(self.written, self.certain)

    @property
    def has_rotted(self) -> bool:
        """Whether that was there before, so that it is damage and no torn write."""
        return self.valid < self.certain

    @property
    def count(self) -> int:
        """How many records the segment has: damaged ones count, torn ones do not."""
        return max(self.certain, self.last_intact) if self.has_rotted else self.valid


def check_tail(view: SegmentView, evidence: Evidence) -> TailCheck:
    """Look at every slot from the hint on, or from the first one if the hint is of no use."""
    header = view.header
    written = slots.written_slots(view.view, header)
    start = _start(view, evidence.hint, written)
    runs = list(slots.walk(view.view, header, start, written))
    return TailCheck(
        valid=runs[0].stop if runs and runs[0].intact else start,
        written=written,
        last_intact=max((run.stop for run in runs if run.intact), default=start),
        certain=evidence.index_in(header),
    )


def _start(view: SegmentView, hint: Hint | None, written: int) -> int:
    """Return where to start looking: at the hint if a batch really ends there, else at 0."""
    if (
        hint is None
        or hint.segment != view.header.id
        or not 0 < hint.index <= written
        or (slots.slot_position(hint.index) > len(view.view))
    ):
        return 0
    first = slots.batch_start(view.view, hint.index - 1)
    return hint.index if slots.is_intact(view.view, view.header, first, hint.index) else 0
