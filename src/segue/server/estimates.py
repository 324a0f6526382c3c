"""What waits in a queue, judged by some of it: a thousand messages tell what ten million are.

Of what was never delivered, neighbours are read in places that are spread evenly and at random; of
what came back or is delayed, some at random. The two are weighed by how many there are of each. It
takes a moment and no longer: what was read by then is what is told.
"""

import random
import threading
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from segue.clock import Ticks
from segue.server.estimate_readers import (
    FileReader,
    PageReader,
    Reader,
    RedisReader,
    Seen,
    Span,
    Survey,
)
from segue.stores.contract import Queue, Store
from segue.stores.file.queue import FileQueue
from segue.stores.file.store import FileStore
from segue.values import dataclass

SAMPLE_MAX: Final = 1_000
"""How many messages that were never delivered are looked at."""
STRETCH: Final = 20
"""How many of them are neighbours."""
STRETCH_WHOLE: Final = 100
"""How many are read at once where all of them are."""
STRETCH_BYTES_MAX: Final = 1 << 20
"""How much is read at once, unless one message alone is larger."""
RESTING_MAX: Final = 200
"""How many are looked at that came back, or are delayed."""
SECONDS_MAX: Final = 0.08
"""How long looking takes."""
KEPT_SECONDS: Final = 3.0
"""For how long what was found is told again."""
QUEUES_KEPT: Final = 64
"""Of how many queues it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What waits in a queue, by what it counts for. Counts are estimated unless all was seen."""

    sampled: int
    of: int
    keys: "Counter[str]"
    tasks: "Counter[str]"
    returned: "Counter[str]"

    @property
    def is_exact(self) -> bool:
        """Whether everything was looked at."""
        return self.sampled == self.of


class Estimates:
    """The estimates of all queues of a server, each for a few seconds. Safe from any thread."""

    def __init__(
        self,
        ticks: Ticks,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._ticks = ticks
        self._monotonic = monotonic
        self._chance = chance or random.Random()
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, Estimate]] = OrderedDict()

    def of(self, store: Store, queue: Queue) -> Estimate:
        """Return what waits in a queue, as it was a few seconds ago at most."""
        now_us = self._ticks()
        with self._lock:
            kept = self._kept.get(queue.name)
        if kept is not None and 0 <= now_us - kept[0] < KEPT_SECONDS * 1_000_000:
            return kept[1]
        deadline = self._monotonic() + SECONDS_MAX
        estimate = estimate_of(
            reader_of(store, queue, self._chance),
            self._chance,
            is_over=lambda: self._monotonic() >= deadline,
        )
        with self._lock:
            self._kept[queue.name] = now_us, estimate
            self._kept.move_to_end(queue.name)
            while len(self._kept) > QUEUES_KEPT:
                self._kept.popitem(last=False)
        return estimate


def reader_of(store: Store, queue: Queue, chance: random.Random) -> Reader:
    """Return what reads messages of a queue in the way that its store allows."""
    if isinstance(queue, FileQueue):
        return FileReader(queue._core, chance)
    if isinstance(store, FileStore):
        return PageReader(queue)  # It is not there yet.
    try:
        from segue.stores.redis.queue import RedisQueue
        from segue.stores.redis.store import RedisStore
    except ModuleNotFoundError:
        return PageReader(queue)
    if isinstance(store, RedisStore) and isinstance(queue, RedisQueue):
        return RedisReader(store, queue)
    return PageReader(queue)


def estimate_of(reader: Reader, chance: random.Random, *, is_over: Callable[[], bool]) -> Estimate:
    """Return what waits in a queue, judged by what is read until `is_over`."""
    survey = reader.survey()
    resting = reader.resting(RESTING_MAX, is_over) if survey.resting else []
    fresh = _fresh(reader, survey, chance, is_over)
    fresh_count = sum(span.stop - span.start for span in survey.fresh)
    parts = [(survey.resting, resting), (fresh_count, fresh)]
    of = sum(max(count, len(seen)) for count, seen in parts)
    covered = sum(max(count, len(seen)) for count, seen in parts if seen)
    estimate = Estimate(
        sampled=len(resting) + len(fresh),
        of=of,
        keys=Counter(),
        tasks=Counter(),
        returned=Counter(),
    )
    weighed: dict[tuple[int, str], float] = {}
    counters = (estimate.keys, estimate.tasks, estimate.returned)
    for count, seen in parts:
        if seen:
            weight = max(1.0, count / len(seen)) * of / covered
            for each in seen:
                for place, text in enumerate(each[: len(counters)]):
                    if isinstance(text, str):
                        weighed[place, text] = weighed.get((place, text), 0.0) + weight
    for (place, text), count_weighed in weighed.items():
        counters[place][text] = max(1, round(count_weighed))
    return estimate


def _fresh(
    reader: Reader, survey: Survey, chance: random.Random, is_over: Callable[[], bool]
) -> list[Seen]:
    """Return some of what was never delivered: all, if it is no more than is looked at."""
    spans = [span for span in survey.fresh if span.start < span.stop]
    ends = list(accumulate(span.stop - span.start for span in spans))
    total = ends[-1] if ends else 0
    is_all = total <= SAMPLE_MAX
    spread = _spread(total, SAMPLE_MAX // STRETCH, chance)
    found: list[Seen] = []
    position = 0 if is_all else next(spread)
    count = 1  # Until it is known how large they are.
    while position < total and not is_over():
        place = bisect_right(ends, position)
        stop = spans[place].stop
        start = stop - (ends[place] - position)
        span = Span(spans[place].lane, start, min(stop, start + count))
        seen = reader.fresh(span)
        found += seen
        position = position + span.stop - span.start if is_all else next(spread, total)
        if seen:
            mean_bytes = 1 + sum(each.size_bytes for each in seen) // len(seen)
            most = STRETCH_WHOLE if is_all else STRETCH
            count = max(1, min(most, STRETCH_BYTES_MAX // mean_bytes))
    return found


def _spread(total: int, count: int, chance: random.Random) -> Iterator[int]:
    """Yield so many positions, one at random in each of as many equal parts.

    In no order, so that those that are looked at are spread evenly whenever it is over.
    """
    for part in chance.sample(range(count), count):
        yield chance.randrange(total * part // count, total * (part + 1) // count)
