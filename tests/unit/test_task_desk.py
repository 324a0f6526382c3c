"""The desk: lists by page, counts, and finding one dead letter among many."""

from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import cast

import msgspec
import pytest

from segue.delivery.message import DeadLetter, Message, MessageId
from segue.delivery.topic_rules import TopicRules
from segue.errors import InvalidArgument, StoreUnavailable, TaskNotFound
from segue.stores.contract import MessageStatus, Queue
from segue.stores.file.queue import FileQueue
from segue.stores.letters import DeadLetters
from segue.tasks import App, State, TaskRecord, desk, obituaries, tally
from segue.tasks.desk import Desk
from segue.tasks.envelope import Envelope, write_envelope
from segue.tasks.events import TaskEvent
from segue.tasks.obituaries import letter_near
from segue.tasks.walk import Place, place_from
from segue.tasks.worker.reports import (
    GONE_SECONDS,
    SilentWorkers,
    WorkerReport,
    prepare_reports,
    read_reports,
    send_report,
)
from segue.testing import ManualClock
from tests.contract.task_support import manual_app, work

PAGES_MAX = 500
"""More than any list here has."""


@pytest.fixture(autouse=True)
def _with_all_the_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages end for what they hold, however busy the machine is."""
    monkeypatch.setattr(desk, "PAGE_SECONDS", 3_600.0)
    monkeypatch.setattr(tally, "LOOK_SECONDS", 3_600.0)


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock()


@pytest.fixture
def app(scratch: Path, clock: ManualClock) -> Iterator[App]:
    """An App whose tasks succeed, fail, or are tried again."""
    with manual_app(scratch / "data", clock) as app:
        app.queue("other")

        @app.task
        def good(number: int = 0) -> int:
            return number

        @app.task(retries=0)
        def bad(number: int = 0) -> None:
            raise ValueError(f"number {number}")

        @app.task(retries=3)
        def again() -> None:
            raise OSError("busy")

        yield app


def pages(app: App, limit: int, **conditions: object) -> list[list[TaskRecord]]:
    """Return all pages of a list."""
    found: list[list[TaskRecord]] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page, after = app.desk.page(limit=limit, after=after, **conditions)  # type: ignore[arg-type]
        assert len(page) <= limit
        found.append(page)
        if after is None:
            return found
    raise AssertionError("a list without an end")


def ids(app: App, limit: int = 3, **conditions: object) -> list[str]:
    """Return the ids of a whole list."""
    return [each.id for page in pages(app, limit, **conditions) for each in page]


def of_every_kind(app: App) -> dict[State, list[str]]:
    """Return tasks in every state but processing, five each, in two queues."""
    good, bad, again = app.find_task("good"), app.find_task("bad"), app.find_task("again")

    def some(task: object, **rules: object) -> list[str]:
        return [task.using(**rules).enqueue().id for _ in range(5)]  # type: ignore[attr-defined]

    found = {
        State.DEAD_LETTER: some(bad),
        State.RETRYING: some(again),
        State.COMPLETED: some(good, queue="other"),
    }
    work(app)
    found[State.PENDING] = some(good, queue="other")
    found[State.SCHEDULED] = some(good, delay=60)
    found[State.CANCELLED] = some(good)
    for task_id in found[State.CANCELLED]:
        app.desk.cancel(task_id)
    app.store.queue("default").push(b"no task at all")
    return found


# Pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_pages_together_have_every_task_once(app: App, limit: int) -> None:
    """By state, name, queue and error as `find` finds them, the unfinished before the finished."""
    expected = of_every_kind(app)

    def found(**conditions: object) -> list[str]:
        listed = ids(app, limit, **conditions)
        assert len(set(listed)) == len(listed)
        direct = app.desk.find(limit=1_000, **conditions)  # type: ignore[arg-type]
        assert listed == [each.id for each in direct]
        return listed

    everything = found()
    assert sorted(everything) == sorted(chain(*expected.values()))
    assert set(everything[-5:]) == set(expected[State.COMPLETED])
    for state, task_ids in expected.items():
        assert sorted(found(states=[state])) == sorted(task_ids), state
    assert sorted(found(states=[State.CANCELLED, State.PENDING])) == sorted(
        expected[State.CANCELLED] + expected[State.PENDING]
    )
    assert sorted(found(queue="other")) == sorted(
        expected[State.COMPLETED] + expected[State.PENDING]
    )
    assert sorted(found(error="NUMBER")) == sorted(expected[State.DEAD_LETTER])
    assert sorted(found(task="again")) == sorted(expected[State.RETRYING])
    assert found(queue="nowhere") == []
    assert found(queue="../nowhere") == []


def test_only_queues_that_are_covered_count(app: App) -> None:
    """Also among the finished, and if a queue is named that is not."""
    expected = of_every_kind(app)

    def covers(name: str) -> bool:
        return name == "other"

    assert set(ids(app, covers=covers)) == set(expected[State.COMPLETED] + expected[State.PENDING])
    assert ids(app, covers=covers, queue="default") == []
    assert ids(app, covers=covers, states=[State.CANCELLED]) == []


def test_a_page_looks_at_so_many_messages_and_goes_on_with_the_next(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also through messages that are no tasks: an empty page is not the last one."""
    monkeypatch.setattr(desk, "PAGE_MESSAGES_MAX", 10)
    app.store.queue("default").push_many([b"no task"] * 95)
    task_id = app.find_task("good").enqueue().id
    app.store.queue("default").push_many([b"no task"] * 5)
    found = pages(app, 5, states=[State.PENDING])

    assert [each.id for page in found for each in page] == [task_id]
    assert len(found) == 11


def test_many_messages_that_are_no_tasks_do_not_lie_before_the_tasks_of_other_queues(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is named, or that workers have told of, is looked through to its end."""
    monkeypatch.setattr(desk, "PAGE_MESSAGES_MAX", 400)
    app.store.queue("another").push_many([b"no task"] * 3_000)
    hidden = write_envelope(Envelope(task="good", args=msgspec.Raw(b"{}")))
    hidden_id = f"another/{app.store.queue('another').push(hidden)}"
    task_id = app.find_task("good").enqueue().id
    waiting = [State.PENDING]

    found = pages(app, 25, states=waiting)
    assert [each.id for page in found for each in page] == [task_id]
    assert len(found) == 1
    assert ids(app, 25, states=waiting, queue="another") == [hidden_id]
    now_us = app.clock()
    app.desk.log.append(
        [
            TaskEvent(
                id="another/5-9",
                happened="completed",
                at_us=now_us,
                task="good",
                pushed_us=now_us,
                expires_us=now_us + 60_000_000,
            )
        ]
    )
    assert sorted(ids(app, 25, states=waiting)) == sorted([hidden_id, task_id])


def test_a_queue_that_was_met_without_a_task_is_passed_over_until_it_changes(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a while has passed: there may be hundreds of them before those with tasks."""
    plain = app.store.queue("another")
    plain.push_many([b"no task"] * 3)
    assert ids(app, 25, states=[State.PENDING]) == []
    browsed: list[str] = []
    browse = FileQueue.browse

    def noting(queue: FileQueue, **asked: object) -> list[MessageStatus]:
        browsed.append(queue.name)
        return browse(queue, **asked)  # type: ignore[arg-type]

    monkeypatch.setattr(FileQueue, "browse", noting)
    assert ids(app, 25, states=[State.PENDING]) == []
    assert browsed == []
    task = write_envelope(Envelope(task="good", args=msgspec.Raw(b"{}")))
    assert ids(app, 25, states=[State.PENDING]) == []
    task_id = f"another/{plain.push(task)}"

    assert ids(app, 25, states=[State.PENDING]) == [task_id]


def test_a_page_looks_no_further_once_its_time_is_over(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is looked at each time, so that the list comes to an end."""
    monkeypatch.setattr(desk, "PAGE_SECONDS", 0.0)
    monkeypatch.setattr(desk, "PAGE_MESSAGES_MIN", 1)
    expected = of_every_kind(app)
    found = pages(app, 100)

    assert [len(page) for page in found if page] == [1] * 25 + [5]
    assert sorted(each.id for page in found for each in page) == sorted(chain(*expected.values()))


def test_what_is_to_be_cancelled_is_found_without_looking_at_all_that_waits(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are few, and messages may be millions."""
    monkeypatch.setattr(desk, "PAGE_MESSAGES_MAX", 5)
    for _ in range(50):
        last = app.find_task("good").enqueue()
    last.cancel()
    found = pages(app, 5, states=[State.CANCELLED])

    assert [each.id for each in found[0]] == [last.id]
    assert len(found) == 1


def test_dead_letters_that_leave_between_two_pages_do_not_have_the_list_start_over(
    app: App,
) -> None:
    """They are counted by number, which no other letter gets."""
    dead = [app.find_task("bad").enqueue(number).id for number in range(9)]
    work(app)
    first, after = app.desk.page(states=[State.DEAD_LETTER], limit=3)
    app.store.queue("default").discard(where=lambda letter: letter.message.id.endswith("-2"))
    second, _ = app.desk.page(states=[State.DEAD_LETTER], limit=3, after=after)

    assert [each.id for each in first + second] == dead[:6]


def test_a_queue_that_is_removed_between_two_pages_is_passed_over(app: App) -> None:
    """So is a place in it."""
    good = app.find_task("good")
    for _ in range(4):
        good.enqueue()
    there = good.using(queue="other").enqueue()
    first, after = app.desk.page(limit=2)
    app.store.remove_queue("default")
    second, after = app.desk.page(limit=2, after=after)

    assert len(first) == 2
    assert [each.id for each in second] == [there.id]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "ä",
        "a" * 3_000,
        "W10",
        Place("ready", "default", "no id").text(),
        Place("dead", "default", "", 1 << 53).text(),
        Place("dead", "default", "", -2).text(),
        Place("ready", "default", "2-0").text() + "!",
        Place("leased", "q").text()[:-1],
    ],
)
def test_a_place_that_nobody_was_given_is_refused(app: App, text: str) -> None:
    """Whatever comes back is looked at before it is used."""
    with pytest.raises(InvalidArgument):
        app.desk.page(after=text)


def test_a_place_comes_back_as_it_was() -> None:
    """Whatever a queue is called."""
    for place in (Place("ready", "a.b-c_d", "2-17"), Place("finished", "", "q/later-3", 1 << 61)):
        assert place_from(place.text()) == place


# Counts ------------------------------------------------------------------------------------


def test_tasks_are_counted_by_queues_and_by_events(app: App) -> None:
    """What waits by its queue, what is finished by events; a list has as many."""
    expected = of_every_kind(app)
    app.store.queue("default").lease()
    found = app.desk.counts()

    # The message that is no task is ready, one that is to be cancelled leased; so are they counted.
    assert found.states == {
        State.PENDING: 5 + 5 + 1 - 1,
        State.SCHEDULED: 5,
        State.PROCESSING: 1,
        State.RETRYING: 5,
        State.COMPLETED: 5,
        State.DEAD_LETTER: 5,
        State.CANCELLED: 0,
    }
    assert expected
    assert dict(found.tasks) == {
        "again": {State.RETRYING: 5},
        "bad": {State.DEAD_LETTER: 5},
        "good": {State.COMPLETED: 5},
    }
    assert found.more_queues == 0


def test_a_queue_without_tasks_does_not_count(app: App) -> None:
    """One with tasks does, also before anything has happened to them."""
    app.store.queue("plain").push_many([b"no task"] * 50)
    app.find_task("good").enqueue()

    assert app.desk.counts().states[State.PENDING] == 1


def test_tasks_of_queues_that_are_not_covered_do_not_count(app: App) -> None:
    """Neither their names."""
    of_every_kind(app)
    found = app.desk.counts(lambda name: name == "other")

    assert sum(found.states.values()) == 10
    assert dict(found.tasks) == {"good": {State.COMPLETED: 5}}


def test_queues_that_there_was_no_time_for_are_counted_by_and_by(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look goes on where the last one ended; until then it is told how many are missing."""
    for number in range(6):
        app.store.queue(f"q{number}").push(b'{"task": "good"}')
    now = [0.0]
    counting = tally.Tally(app.store, app.desk.index, lambda: now[0])
    count = FileQueue.count

    def slow(queue: FileQueue) -> object:
        now[0] += tally.LOOK_SECONDS / 2
        return count(queue)

    monkeypatch.setattr(FileQueue, "count", slow)
    found = [counting.counts(lambda _: True) for _ in range(4)]

    assert [each.more_queues for each in found] == [4, 2, 0, 0]
    assert [each.states[State.PENDING] for each in found] == [2, 4, 6, 6]


def test_the_names_with_most_tasks_are_told(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be any number of names."""
    monkeypatch.setattr(tally, "TASKS_SHOWN_MAX", 2)
    of_every_kind(app)
    app.find_task("good").enqueue()
    work(app, queues=["default"])

    assert [task for task, _ in app.desk.counts().tasks] == ["good", "again"]


# One task ----------------------------------------------------------------------------------


def test_what_happened_to_a_task_is_told(app: App) -> None:
    """In its order; of one that waits nothing has, and of one that never was nothing is known."""
    dead = app.find_task("bad").enqueue(7)
    work(app)
    waiting = app.find_task("good").enqueue()
    events, is_whole = app.desk.events(dead.id)

    assert [(each.happened, each.error) for each in events] == [
        ("dead_letter", "ValueError: number 7")
    ]
    assert is_whole
    assert app.desk.events(waiting.id) == ([], True)
    with pytest.raises(TaskNotFound):
        app.desk.events("default/2-99")
    with pytest.raises(InvalidArgument):
        app.desk.events("default")


@pytest.mark.parametrize("is_known", [True, False])
def test_events_that_retention_took_are_missed(
    app: App, clock: ManualClock, is_known: bool
) -> None:
    """What is left is told, and that it is not all: also by an index that never saw the rest."""
    app.desk.prepare()
    app.log.topic.configure(TopicRules(keep_seconds=10))
    for happened in ("retrying", "completed"):
        clock.advance(seconds=60)
        app.log.append(
            [TaskEvent(id="default/2-0", happened=happened, at_us=clock(), task="x", attempt=1)]
        )
        if is_known:
            app.desk.index.catch_up()
        app.log.topic.roll()
    app.log.topic.clean()
    events, is_whole = app.desk.events("default/2-0")

    assert [each.happened for each in events] == ["completed"]
    assert not is_whole


def test_a_task_that_has_left_its_queue_is_not_called_unknown_before_all_is_taken_in(
    app: App, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event may be among those that are left."""
    done = app.find_task("good").enqueue()
    work(app)
    monkeypatch.setattr(desk, "RECORD_SECONDS", 0.0)
    hasty = Desk(app.store, clock, patience_seconds=0.0)
    hasty.index._path = None  # One that knows nothing yet.
    monkeypatch.setattr(hasty.index, "_advance", lambda *_: False)
    monkeypatch.setattr(hasty.index, "_have_followed", lambda: None)

    with pytest.raises(StoreUnavailable):
        hasty.record(done.id)
    monkeypatch.undo()
    assert hasty.index.catch_up(60) == 0
    assert hasty.record(done.id).state is State.COMPLETED
    hasty.close()


# Dead letters ------------------------------------------------------------------------------


class ListedLetters(DeadLetters):
    """Dead letters in memory, and how many were looked at."""

    def __init__(self, letters: list[DeadLetter]) -> None:
        self.letters = letters
        self.looked = 0

    def behind(self, number: int) -> Iterator[DeadLetter]:
        for letter in self.letters:
            if letter.number > number:
                self.looked += 1
                yield letter

    def newest(self) -> int:
        return self.letters[-1].number if self.letters else -1

    def revive(self, letters: list[DeadLetter]) -> int:
        raise NotImplementedError

    def drop(self, letters: list[DeadLetter]) -> int:
        raise NotImplementedError

    def drop_all(self) -> int:
        raise NotImplementedError


def letter(number: int, died_us: int) -> DeadLetter:
    message = Message(id=MessageId(f"2-{number}"), body=b"", priority=2, attempt=1, pushed_us=0)
    return DeadLetter(
        message=message, cause="dead", reason="", died_us=died_us, number=number, deliveries=1
    )


def test_a_letter_is_found_by_when_it_died() -> None:
    """Whichever it is, at the cost of few others."""
    second = obituaries.SLACK_US
    there = ListedLetters([letter(7 * number, 60 * second * number) for number in range(1_000)])
    for each in there.letters:
        there.looked = 0

        assert letter_near(there, each.message.id, each.died_us - second // 2) == each
        assert there.looked < 30
    assert letter_near(there, MessageId("2-1"), 500) is None
    assert letter_near(there, MessageId("2-7"), 1 << 60) is None
    assert letter_near(ListedLetters([]), MessageId("2-7"), 5) is None


def test_letters_that_died_together_are_told_apart() -> None:
    """By their ids, as far as there are not too many."""
    there = ListedLetters([letter(number, 10**9) for number in range(100)])

    assert letter_near(there, MessageId("2-77"), 10**9) == there.letters[77]


def test_a_dead_task_is_brought_back_without_going_through_all_letters(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event says when it died. One that no event is about is looked for all the same."""
    results = [app.find_task("bad").enqueue(number) for number in range(5)]
    work(app)
    queue = app.store.queue("default")
    queue.push(b'{"task": "good"}')
    queue.lease().bury("by hand")
    with monkeypatch.context() as patched:
        patched.setattr(FileQueue, "redrive", None)
        patched.setattr(FileQueue, "look_up", None)
        states = [app.desk.record(each.id).state for each in results]
        is_back = app.desk.retry(results[3].id)
    (by_hand,) = (each for each in queue.dead_letters() if each.reason == "by hand")

    assert states == [State.DEAD_LETTER] * 5
    assert is_back
    assert app.desk.record(results[3].id).state is State.RETRYING
    assert not app.desk.retry(results[3].id)
    assert app.desk.retry(f"default/{by_hand.message.id}")
    assert _dead(queue) == [each.id.partition("/")[2] for each in results if each != results[3]]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_request_to_cancel_that_came_too_late_does_not_cancel_what_is_brought_back(
    app: App, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """It was made while the task still ran, and kept when that had died."""
    result = app.find_task("bad").enqueue(1)
    work(app)
    record = result.record()
    app.desk.cancellations.request(result.id, record.pushed_us)
    if not is_known:
        monkeypatch.setattr(Desk, "_finds_letters", False)
    is_back = app.desk.retry(result.id)
    work(app)

    assert is_back
    assert (result.state, result.record().attempt) == (State.DEAD_LETTER, record.attempt + 1)


def _dead(queue: Queue) -> list[str]:
    return [cast("str", each.message.id) for each in queue.dead_letters()]


# Damage -------------------------------------------------------------------------------------


def test_an_event_that_is_damaged_costs_no_other(
    app: App, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What became of all other tasks is known all the same; that one is missing is logged."""
    results = []
    for number in (111, 222, 333):
        results.append(app.find_task("good").enqueue(number))
        work(app)
    app.close()
    _flip(scratch / "data" / "topics" / "segue.tasks", b'"result":111')
    results.append(app.find_task("good").enqueue(444))
    work(app)

    with pytest.raises(TaskNotFound):
        results[0].record()
    assert [result.get(0) for result in results[1:]] == [222, 333, 444]
    assert any("passed over topic=segue.tasks" in words for words in caplog.messages)


def test_a_request_to_cancel_that_is_damaged_stops_no_worker(app: App, scratch: Path) -> None:
    """Nobody knows whom it was about. What comes after it counts."""
    results = [app.find_task("good").enqueue(number) for number in (111, 222)]
    for result in results:
        result.cancel()
    app.close()
    _flip(scratch / "data" / "topics" / "segue.cancellations", results[0].id.encode())
    work(app)

    assert [result.state for result in results] == [State.COMPLETED, State.CANCELLED]


def test_a_report_that_is_damaged_hides_no_worker(
    app: App, clock: ManualClock, scratch: Path
) -> None:
    """Who reported before and after it is seen, at work or silent."""
    prepare_reports(app.store)
    for name in ("first", "second", "third"):
        report = WorkerReport(
            worker=name,
            host="here",
            pid=1,
            kind="thread",
            state="running",
            at_us=clock(),
            started_us=clock(),
            queues=["default"],
            size=1,
            busy=0,
            min=1,
            max=1,
        )
        send_report(app.store, report)
    app.close()
    _flip(scratch / "data" / "topics" / "segue.workers", b'"worker":"second"')
    silent = SilentWorkers(app.store)

    assert [each.worker for each in read_reports(app.store, clock())] == ["first", "third"]
    assert silent.reports(clock()) == []
    clock.advance(seconds=2 * GONE_SECONDS)
    assert [each.worker for each in silent.reports(clock())] == ["first", "third"]


def _flip(topic: Path, where: bytes) -> None:
    """Change one bit of what a topic holds."""
    (segment,) = (each for each in topic.rglob("*.q") if where in each.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(where)] ^= 1
    segment.write_bytes(data)


# Messages of a state ------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [1, 50])
def test_messages_of_a_state_are_listed_in_order_whatever_lies_between(
    app: App, clock: ManualClock, leave: int
) -> None:
    """Close together or far apart, leased, delayed or back again; page by page or at once."""
    queue = app.store.queue("mixed")
    for number in range(300):
        queue.push(b"x", priority=number % 2, delay=60 - number % 7 if number % 3 == 0 else None)
    for job in queue.lease_many(150):
        if job.offset % 5:
            job.fail("again", delay=30 if job.offset % 2 else 0)
    clock.advance(seconds=61)
    for place, job in enumerate(queue.lease_many(200)):
        if place % leave == 0:
            job.ack()
    clock.advance(seconds=1)
    everything = queue.browse(limit=1_000)
    for state in ("ready", "delayed", "leased"):
        found: list[MessageStatus] = []
        while page := queue.browse(
            state=state, limit=7, after=found[-1].message.id if found else None
        ):
            found += page

        assert found == [each for each in everything if each.state == state]
        keys = [_order(each.message.id) for each in found]
        assert all(before < after for before, after in pairwise(keys))


def _order(message_id: str) -> tuple[int, int]:
    lane, _, offset = message_id.partition("-")
    return (1_000 if lane == "later" else int(lane)), int(offset)
