"""A copy of a store that is in use, as docs/operations.md says to make one, has all of it."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import segue
from segue.cli import main
from segue.stores.topic_contract import TopicReader
from tests.integration.test_docs import ROOT
from tests.waiting import LIMIT_SECONDS

SCRIPT: Final = ROOT / "examples" / "backup.sh"
COPIES: Final = 3
WAITING_MIN: Final = 300
"""How many messages wait at least, so that there is something to lose."""
QUEUE_RULES: Final = segue.QueueRules(segment_items=40, lease_ttl=600)
TOPIC_RULES: Final = segue.TopicRules(segment_bytes=16 * 1024)


class Business:
    """Somebody who pushes, somebody who works, and what they know of it."""

    def __init__(self, store: segue.Store) -> None:
        self.queue = store.queue("jobs", QUEUE_RULES)
        self.topic = store.topic("events", rules=TOPIC_RULES)
        self.reader = self.topic.reader("audit")
        self.begun: list[str] = []
        self.pushed: list[str] = []
        self.settled: list[str] = []
        self.is_under_way = threading.Event()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(each,))
            for each in (self._push, self._work)
        ]

    def __enter__(self) -> "Business":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self.reader.close()

    def _until_stopped(self, step: Callable[[int], None]) -> None:
        number = 0
        while not self._stopped.is_set():
            step(number)
            number += 1

    def _push(self, number: int) -> None:
        delay = 0.05 if number % 7 == 0 else None
        items = [f"{number}.{each}" for each in range(10)]
        self.begun += items
        self.queue.push_many([segue.Item(body=item, delay=delay) for item in items])
        self.topic.append_many(items)
        self.pushed += items

    def _work(self, number: int) -> None:
        if len(self.pushed) - len(self.settled) < WAITING_MIN:
            self._stopped.wait(0.001)
            return
        for each, job in enumerate(self.queue.lease_many(12)):
            if each == 0 and number % 5 == 0:
                continue  # Never settled, so that old messages stay while others go by.
            if each == 1 and number % 5 == 0:
                job.bury("no good")
                continue
            self.settled.append(job.text)  # Before: nothing is settled without our knowing.
            job.ack()
        self.reader.poll(50, timeout=0)
        self.reader.commit()
        self.topic.clean()
        if len(self.settled) > WAITING_MIN:
            self.is_under_way.set()


def copy_of(store: Path, place: Path) -> Path:
    """Make an archive of a store and take out of it again what is in it."""
    place.mkdir()
    subprocess.run(["sh", SCRIPT, store, place / "copy.tar"], check=True, timeout=LIMIT_SECONDS)
    target = place / "restored"
    target.mkdir()
    subprocess.run(
        ["tar", "-xf", place / "copy.tar", "-C", target], check=True, timeout=LIMIT_SECONDS
    )
    return target


def held_by(queue: segue.Queue) -> list[str]:
    """Return the bodies of all that is not settled."""
    found: list[str] = []
    after = None
    while page := queue.browse(limit=1_000, after=after):
        found += [each.message.text for each in page]
        after = page[-1].message.id
    return found


def left_for(reader: TopicReader) -> list[str]:
    """Return what a reader has not read yet."""
    found: list[str] = []
    while records := reader.poll(1_000, timeout=0):
        found += [(record.value or b"").decode() for record in records]
    return found


def test_nothing_is_missing_in_a_copy_of_a_store_that_is_in_use(tmp_path: Path) -> None:
    """What was pushed before it began and not settled by its end is in it, once."""
    with segue.open(tmp_path / "store", sync="os") as store, Business(store) as business:
        assert business.is_under_way.wait(LIMIT_SECONDS)
        for number in range(COPIES):
            before = list(business.pushed)
            path = copy_of(tmp_path / "store", tmp_path / f"{number}")
            settled = set(business.settled)
            with segue.open(path) as copy:
                held = held_by(copy.queue("jobs"))
                with copy.topic("events").reader("audit") as reader:
                    unread = left_for(reader)
                pushed_later = copy.queue("jobs").push("new")
                is_there = copy.queue("jobs").look_up(pushed_later) is not None

            assert [each for each in before if each not in settled and each not in held] == []
            assert len(held) == len(set(held))
            assert is_there
            begun = business.begun[: business.begun.index(unread[-1]) + 1]
            assert begun[-len(unread) :] == unread
            assert len(begun) >= len(before)
            assert main(["verify", str(path)]) == 0
