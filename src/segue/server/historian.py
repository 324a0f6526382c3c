"""Keeps the history of a store: reads what was recorded, and records or follows what happens.

Of several servers of one store one records: whoever holds a lock. The others read what it records,
and take samples of their own, which they keep to themselves, for as long as nobody does. A server
that is not to record does so only while somebody looks at it.
"""

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from segue.clock import Clock, system_clock
from segue.delivery.topic_record import TopicRecord
from segue.errors import (
    CorruptRecord,
    Damage,
    LockBusy,
    LockLost,
    OffsetTrimmed,
    SegueError,
    StoreClosed,
)
from segue.server.history import History
from segue.server.overlook import Overlook
from segue.server.sampler import WHOLE_SECONDS, Sampler
from segue.server.samples import HISTORY_TOPIC, RULES, Sample, encoded, is_whole, sample_of
from segue.server.tracks import RESOLUTIONS
from segue.stores.contract import HeldLock, Store
from segue.stores.topic_contract import Topic

logger = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 10.0
READ_SECONDS: Final = 7 * 86_400.0
"""How far back is read at the start."""
CLOSE_SECONDS: Final = float(RESOLUTIONS[1][0] * RESOLUTIONS[1][1])
"""Of what is older only whole samples are read: points there are far apart."""
RECORDS_READ_MAX: Final = 200_000
"""How many records are read in one go; more are read the next time."""
DAMAGES_MAX: Final = 1_000
"""How many damaged places are passed over in one go; those behind them the next time."""
PASSED_OVER_MAX: Final = 1_000
"""How many samples are kept for as long as no whole one is known to follow them."""
FUTURE_SECONDS: Final = 60.0
"""How far ahead of us the clock of another server may be."""
LOCK_SECONDS: Final = 25.0
"""How long others wait for a server that records and falls silent."""
LOOK_PATIENCE_SECONDS: Final = 5.0
UNASKED_SECONDS: Final = 900.0
"""How long a server that does not record goes on after somebody asked."""
ENDING_SECONDS: Final = 2.0
WORK_SECONDS: Final = 0.02
"""How long reading goes on before it rests."""
REST_SECONDS: Final = 0.005
_SECOND_US: Final = 1_000_000


class Historian:
    """The history of one server's store. Safe from any thread."""

    def __init__(
        self, store: Store, overlook: Overlook, *, records: bool, clock: Clock = system_clock
    ) -> None:
        self.history = History()
        self._store = store
        self._overlook = overlook
        self._records = records
        self._clock = clock
        self._starting = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_us = 0
        self._position: dict[int, int] | None = None
        """Up to where the topic is read."""
        self._sampler = Sampler()
        self._held: HeldLock | None = None
        self._topic: Topic | None = None
        self._problem = ""
        self._rested = 0.0

    @property
    def now_us(self) -> int:
        """What time it is, by the clock that samples go by."""
        return self._clock()

    # Running -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record, if this server is to."""
        if self._records:
            self._start()

    def ask(self) -> None:
        """Keep the history current for a while: somebody looks at it."""
        self._asked_us = self._clock()
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Record no more. The last sample is written if that is soon done."""
        self._ending.set()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(ENDING_SECONDS)

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._ending.is_set():
                return
            thread = threading.Thread(target=self._run, name="segue-serve-history", daemon=True)
            with suppress(RuntimeError):  # There is no thread to be had: the next who asks tries.
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while self._is_needed():
            try:
                self.tick()
            except StoreClosed:
                break
            except Exception as error:  # noqa: BLE001 - the next time it may go well.
                self._warn("no history for now reason=%r", error)
            else:
                self._problem = ""
            # Right after each step begins, so that each has a point.
            now = self._clock() / _SECOND_US
            self._ending.wait(SAMPLE_SECONDS - now % SAMPLE_SECONDS)
        self._end()
        with self._starting:
            self._thread = None

    def _is_needed(self) -> bool:
        is_asked = self._clock() - self._asked_us <= UNASKED_SECONDS * _SECOND_US
        return not self._ending.is_set() and (self._records or is_asked)

    def _warn(self, words: str, error: object) -> None:
        """Log what fails, once for as long as it does."""
        if self._problem != str(error):
            self._problem = str(error)
            logger.warning(words, error)

    def tick(self) -> None:
        """Take in what others recorded; take a sample, and record it if that is for us to do.

        For one thread at a time. Raises SegueError, also where only what others recorded cannot be
        read: what is seen here is recorded all the same.
        """
        try:
            self.catch_up()
        finally:
            self._sample()

    def _sample(self) -> None:
        if self._records:
            self._claim()
        since_us = self._clock() - self.history.last_us
        if self._held is None and 0 <= since_us < SAMPLE_SECONDS * 1.5 * _SECOND_US:
            return  # Somebody else records.
        if self._held is None:
            self._sampler.start_over()  # Others may have told of other queues meanwhile.
        picture = self._overlook.picture(LOOK_PATIENCE_SECONDS)
        sample = self._sampler.sample(picture)
        if sample is None:
            return
        self.history.apply(sample, is_own=True)
        if self._held is not None and sample.has_news:
            self._append(sample)
        self._sampler.note(sample)

    # Reading -------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in what was recorded since the last time, or of the last days. Raises SegueError."""
        if HISTORY_TOPIC not in self._store.topics():
            return
        topic = self._store.topic(HISTORY_TOPIC)
        now_us = self._clock()
        if self._position is None:
            self.history.begin_from(now_us)
            start = datetime.fromtimestamp(now_us / _SECOND_US - READ_SECONDS, UTC)
            self._position = dict(topic.offsets(start))
        reading = _Reading(self.history, now_us)
        damages: list[Damage] = []
        while len(damages) < DAMAGES_MAX:
            try:
                self._read_on(topic, self._position, reading)
                break
            except OffsetTrimmed:
                self._position = dict(topic.offsets("earliest"))
                break
            except Damage as damage:
                damages.append(damage)
                self._pass_over_damage(topic, self._position)
        if damages:
            logger.warning(
                "damage in the history passed over times=%d first=%s", len(damages), damages[0]
            )
        if not self._ending.is_set():
            reading.end()

    def _read_on(self, topic: Topic, position: dict[int, int], reading: "_Reading") -> None:
        for record in topic.records(position, max_records=RECORDS_READ_MAX):
            position[record.partition] = record.offset + 1
            reading.take_in(record)
            if self._ending.is_set():
                return
            self._rest()

    def _pass_over_damage(self, topic: Topic, position: dict[int, int]) -> None:
        """Go on behind what cannot be read, in whichever partition it lies."""
        latest = topic.offsets("latest")
        for partition, start in {**topic.offsets("earliest"), **position}.items():
            try:
                next(topic.records({partition: start}, partitions=[partition], max_records=1), None)
            except CorruptRecord as damage:
                position[partition] = damage.last_offset + 1
            except Damage:
                position[partition] = latest[partition]

    def _rest(self) -> None:
        """Let others have the processor: at the start of a server there may be much to read."""
        now = time.monotonic()
        if now - self._rested >= WORK_SECONDS:
            self._ending.wait(REST_SECONDS)
            self._rested = time.monotonic()

    # Recording -----------------------------------------------------------------------------

    def _claim(self) -> None:
        """Become the one who records, or stay it, if nobody else is."""
        if self._held is not None:
            with suppress(LockLost):
                self._held.renew(ttl=LOCK_SECONDS)
                return
            self._held = None
        with suppress(LockBusy):
            self._held = self._store.lock(HISTORY_TOPIC, ttl=LOCK_SECONDS).acquire(wait=0)
            self._sampler.start_over()

    def _append(self, sample: Sample) -> None:
        if self._topic is None:
            if HISTORY_TOPIC not in self._store.topics():
                self._store.topic(HISTORY_TOPIC, partitions=1, rules=RULES)
            # One that exists keeps its rules: its operator may have other ideas of what to keep.
            self._topic = self._store.topic(HISTORY_TOPIC)
        self._topic.append(encoded(sample), timestamp=sample.at_us)
        self._sampler.written_us = sample.at_us

    def _end(self) -> None:
        """Say until when what was recorded last still held, and let others record."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            last = self._sampler.last_words()
            if self._topic is not None and last is not None:
                self._append(last)
            held.release()
        except SegueError as error:
            logger.info("the history ends without its last words reason=%s", error)


class _Reading:
    """Takes in what was recorded; of what is long ago only whole samples, and what follows them.

    There are sixty times as many of the others, and points are far apart there: what happened
    between two whole ones is taken for even.
    """

    def __init__(self, history: History, now_us: int) -> None:
        self._history = history
        self._latest_us = now_us + int(FUTURE_SECONDS * _SECOND_US)
        self._close_us = now_us - int(CLOSE_SECONDS * _SECOND_US)
        self._passed_over: deque[bytes] = deque(maxlen=PASSED_OVER_MAX)
        """What came since the last whole one."""

    def take_in(self, record: TopicRecord) -> None:
        """Take in a record, if it is a sample."""
        value = record.value or b""
        if record.timestamp_us >= self._close_us:
            self.end()
            self._apply(value)
        elif is_whole(value):
            self._passed_over.clear()
            self._apply(value, is_coarse=True)
        else:
            self._passed_over.append(value)

    def end(self) -> None:
        """Take in what no whole sample followed."""
        while self._passed_over:
            self._apply(self._passed_over.popleft())

    def _apply(self, value: bytes, *, is_coarse: bool = False) -> None:
        sample = sample_of(value)
        if sample is None or sample.at_us > self._latest_us:
            return
        last_us = self._history.last_us
        if (
            is_coarse
            and sample.since_us is not None
            and 0 < sample.at_us - last_us <= 2 * WHOLE_SECONDS * _SECOND_US
        ):
            sample.since_us = last_us
        self._history.apply(sample)
