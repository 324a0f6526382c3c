"""Samples made of what is seen, each with what changed since the one before. Pure.

What is not said anew stands as it did: so that reading may begin somewhere, every now and then a
sample has all queues in it.
"""

from typing import Final

from segue.server.flow import per_second
from segue.server.picture import Picture
from segue.server.samples import QUEUES_SAMPLED_MAX, QueueSample, Sample
from segue.server.task_flow import Crew, spreads_between

WHOLE_SECONDS: Final = 600.0
"""How often a sample has all queues in it, if anything changed since the last one that had."""
_SECOND_US: Final = 1_000_000


class Sampler:
    """Makes samples of what is seen, each with what changed since the one before."""

    def __init__(self) -> None:
        self._said: dict[str, QueueSample] = {}
        self._crew: Crew | None = None
        self._syncs: tuple[int, int] | None = None
        self._number = 0
        """Of the last look that was sampled."""
        self._held_us: int | None = None
        """Until when what was said held."""
        self._whole_us: int | None = None
        self._has_news = False
        """Whether anything changed since the last whole one."""
        self.written_us = 0
        """Of the last sample that was recorded."""

    def start_over(self) -> None:
        """Have the next sample be whole."""
        self._said.clear()
        self._held_us = self._whole_us = None

    def sample(self, picture: Picture) -> Sample | None:
        """Return a sample of what is seen; None if that is not all, or was seen before."""
        if not picture.is_whole or picture.number == self._number:
            return None
        self._number = picture.number
        seen = {
            row.name: QueueSample.of(row.standing)
            for row in picture.rows
            if row.standing is not None
        }
        changed = {
            name: numbers
            for name, numbers in seen.items()
            if not numbers.is_like(self._said.get(name))
        }
        listed = {*picture.others, *(row.name for row in picture.rows)}
        # What is more than a sample may have is said by the next one.
        gone = [name for name in self._said if name not in listed][:QUEUES_SAMPLED_MAX]
        has_news = bool(changed or gone) or self._has_news
        is_due = self._whole_us is None or (has_news and self._is_whole_due(picture.at_us))
        wait_ms, run_ms = spreads_between(self._crew, picture.crew)
        self._crew = picture.crew
        return Sample(
            is_whole=is_due,
            at_us=picture.at_us,
            since_us=self._held_us,
            queues=seen if is_due else changed,
            gone=gone,
            wait_ms=wait_ms,
            run_ms=run_ms,
            syncs_per_second=self._syncs_per_second(picture),
            free_bytes=None if picture.disk is None else picture.disk.free_bytes,
        )

    def note(self, sample: Sample) -> None:
        """Take note that a sample was said."""
        self._said.update(sample.queues)
        for name in sample.gone:
            self._said.pop(name, None)
        self._held_us = sample.at_us
        self._has_news = not sample.is_whole and (self._has_news or sample.has_news)
        if sample.is_whole and sample.has_news:
            self._whole_us = sample.at_us

    def last_words(self) -> Sample | None:
        """Return what says that nothing happened since the last sample; None if none followed."""
        if self._held_us is None or self._held_us <= self.written_us:
            return None
        return Sample(at_us=self._held_us, since_us=self._held_us)

    def _is_whole_due(self, at_us: int) -> bool:
        # Also where the clock was set back.
        return abs(at_us - (self._whole_us or 0)) >= WHOLE_SECONDS * _SECOND_US

    def _syncs_per_second(self, picture: Picture) -> float | None:
        if picture.syncs is None:
            return None
        before, self._syncs = self._syncs, (picture.syncs, picture.at_us)
        if before is None or picture.at_us <= before[1]:
            return None
        return per_second(
            max(0, picture.syncs - before[0]), (picture.at_us - before[1]) / _SECOND_US
        )
