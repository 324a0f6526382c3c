"""Dead letters by what they died of: counted once each, as they come and go."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlencode

import pytest

from segue import QueueRules
from segue.errors import StorageError
from segue.server import letter_groups, letter_index, letter_tally
from segue.server.letter_groups import LetterGroups, Look
from segue.server.letter_index import OTHER
from segue.server.routes import letters as routes
from segue.stores.contract import Queue, Store
from segue.stores.letters import DeadLetters, LetterNote
from segue.stores.queue_base import QueueBase
from tests.contract.worlds import FileWorld, RedisWorld, World
from tests.unit.server_support import Place, placed
from tests.unit.support import flip_bit
from tests.waiting import LIMIT_SECONDS

GROUPS: Final = "/api/v1/queues/jobs/dead-letters/groups"
LETTERS: Final = "/api/v1/queues/jobs/dead-letters"


@pytest.fixture(params=[partial(FileWorld, sync="os"), RedisWorld], ids=["file", "redis"])
def world(request: pytest.FixtureRequest, scratch: Path) -> Iterator[World]:
    world: World = request.param(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def store(world: World) -> Store:
    return world.open()


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue whose messages die of their first failure."""
    return store.queue("jobs", QueueRules(max_deliveries=1))


@pytest.fixture
def groups(store: Store) -> Iterator[LetterGroups]:
    groups = LetterGroups(store.queue)
    yield groups
    groups.close()


def bury(queue: Queue, *reasons: str, cause: str = "dead") -> None:
    """Have a message die of each reason."""
    queue.push_many([reason.encode() for reason in reasons])
    for job in queue.lease_many(len(reasons)):
        queue.nack(job, outcome="dead" if cause == "dead" else "fail", reason=job.text)


def look(groups: LetterGroups) -> Look:
    """Return what is known of the queue, however long that takes."""
    return groups.look("jobs", wait_seconds=LIMIT_SECONDS)


def counts(look: Look) -> dict[tuple[str, str], int]:
    """Return how many letters each group has."""
    assert look.is_complete
    return {(group.cause, group.pattern): group.count for group in look.groups}


def redrive(queue: Queue, *numbers: int) -> None:
    """Bring letters back, and settle them."""
    queue.redrive(where=lambda letter: letter.number in numbers)
    while queue.pop() is not None:
        pass


def letters_of(queue: Queue) -> DeadLetters:
    return cast("QueueBase", queue).letters


# Counting --------------------------------------------------------------------------------------


def test_without_a_thread_to_be_had_the_next_who_asks_tries_again(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked before is told that it is not known yet."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bury(queue, "no such town")
    with monkeypatch.context() as poor:
        poor.setattr(threading.Thread, "start", fail)
        early = groups.look("jobs", wait_seconds=0)

    assert (early.groups, early.is_complete) == ([], False)
    assert counts(look(groups)) == {("dead", "no such town"): 1}


def test_letters_that_died_of_the_same_are_one_group(queue: Queue, groups: LetterGroups) -> None:
    """Numbers aside; the largest group comes first, with when it began and its last letter."""
    bury(queue, "port 1 is closed", "no such town", "port 22 is closed")
    bury(queue, "port 3 is closed", cause="failed")
    found = look(groups)
    first = found.groups[0]
    died = {letter.number: letter.died_us for letter in queue.dead_letters()}

    assert counts(found) == {
        ("dead", "port # is closed"): 2,
        ("dead", "no such town"): 1,
        ("failed", "port # is closed"): 1,
    }
    assert (first.pattern, first.first_us, first.last_us) == (
        "port # is closed",
        died[0],
        died[2],
    )
    assert first.example is not None
    assert (first.example.number, first.example.id, first.example.reason) == (
        2,
        "0-2",
        "port 22 is closed",
    )


@pytest.fixture
def read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the letters that are read, in order."""
    read: list[int] = []
    kind = type(letters_of(queue))
    notes = kind.notes

    def counted(self: DeadLetters, number: int) -> Iterator[LetterNote]:
        for note in notes(self, number):
            read.append(note.number)
            yield note

    monkeypatch.setattr(kind, "notes", counted)
    return read


def test_who_comes_later_is_read_and_nobody_else(
    queue: Queue, groups: LetterGroups, read: list[int]
) -> None:
    """With a million letters nobody could read them all at every look."""
    bury(queue, "a", "a", "b")
    look(groups)
    bury(queue, "b", "c")

    assert counts(look(groups)) == {("dead", "a"): 2, ("dead", "b"): 2, ("dead", "c"): 1}
    assert counts(look(groups)) == {("dead", "a"): 2, ("dead", "b"): 2, ("dead", "c"): 1}
    assert read == [0, 1, 2, 3, 4]


def test_who_left_is_counted_no_more_and_nobody_is_read_again_for_it(
    queue: Queue, groups: LetterGroups, read: list[int]
) -> None:
    """Brought back or dropped, from the front, the middle and the end, while others come."""
    bury(queue, "a", "b", "a", "b", "a", "c")
    look(groups)
    redrive(queue, 0, 5)
    queue.discard(where=lambda letter: letter.number == 3)
    bury(queue, "a", "d")
    found = look(groups)
    first = found.groups[0]

    assert counts(found) == {("dead", "a"): 3, ("dead", "b"): 1, ("dead", "d"): 1}
    assert first.example is not None
    assert first.example.number == 6
    assert read == list(range(8))


def test_a_group_whose_example_left_shows_another(queue: Queue, groups: LetterGroups) -> None:
    """The last of those that are there, and its times."""
    bury(queue, "n 0", "n 1", "other", "n 3")
    look(groups)
    redrive(queue, 0, 3)
    (first, _) = look(groups).groups

    assert (first.pattern, first.count) in {("n #", 1), ("other", 1)}
    (group,) = (each for each in look(groups).groups if each.pattern == "n #")
    assert group.example is not None
    assert group.example.reason == "n 1"
    assert group.first_us == group.last_us


def test_all_that_left_leave_nothing(queue: Queue, groups: LetterGroups) -> None:
    bury(queue, "a", "b")
    look(groups)
    queue.discard()

    assert counts(look(groups)) == {}


def test_a_queue_that_was_made_anew_is_counted_anew(
    store: Store, queue: Queue, groups: LetterGroups, world: World
) -> None:
    """Its letters have the numbers of those before, and are others."""
    bury(queue, "a", "a", "b")
    assert counts(look(groups)) == {("dead", "a"): 2, ("dead", "b"): 1}
    store.remove_queue("jobs")
    world.clock.advance(seconds=1)
    again = store.queue("jobs")
    bury(again, "c", "d", "d")

    assert counts(look(groups)) == {("dead", "c"): 1, ("dead", "d"): 2}


def test_a_queue_that_was_made_anew_with_fewer_letters_is_counted_anew(
    store: Store, queue: Queue, groups: LetterGroups, world: World
) -> None:
    """Also where the last letter that is known is not there to be compared."""
    bury(queue, *"aaaaab")
    look(groups)
    store.remove_queue("jobs")
    world.clock.advance(seconds=1)
    bury(store.queue("jobs"), "c", "d")

    assert counts(look(groups)) == {("dead", "c"): 1, ("dead", "d"): 1}


def test_groups_beyond_the_limit_are_counted_together_by_cause(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes up a reason for each message makes no memory grow."""
    monkeypatch.setattr(letter_index, "GROUPS_MAX", 2)
    bury(queue, "a", "b", "c", "d")
    bury(queue, "e", cause="failed")
    found = look(groups)

    assert counts(found) == {
        ("dead", "a"): 1,
        ("dead", "b"): 1,
        ("dead", OTHER): 2,
        ("failed", OTHER): 1,
    }
    assert [group.is_other for group in found.groups] == [False, False, True, True]


def test_a_group_that_is_empty_makes_room_for_another(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_index, "GROUPS_MAX", 2)
    bury(queue, "a", "b")
    look(groups)
    redrive(queue, 0)
    look(groups)
    bury(queue, "c")

    assert counts(look(groups)) == {("dead", "b"): 1, ("dead", "c"): 1}


def test_letters_beyond_the_limit_are_not_counted_and_that_is_said(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until others leave: then there is room."""
    monkeypatch.setattr(letter_groups, "LETTERS_MAX", 3)
    bury(queue, "a", "b", "c", "d")
    found = look(groups)
    redrive(queue, 0)

    assert not found.is_complete
    assert sum(group.count for group in found.groups) == 3
    assert sum(group.count for group in look(groups).groups) == 2
    assert counts(look(groups)) == {("dead", "b"): 1, ("dead", "c"): 1, ("dead", "d"): 1}


def test_reading_in_steps_comes_to_the_same(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is done in one of them."""
    monkeypatch.setattr(letter_tally, "BATCH", 2)
    monkeypatch.setattr(letter_groups, "STEP_SECONDS", 0.0)
    bury(queue, *"abcab")

    assert counts(look(groups)) == {("dead", "a"): 2, ("dead", "b"): 2, ("dead", "c"): 1}


def test_what_nobody_asks_for_is_forgotten(
    queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is what was asked for longest ago, if there are too many queues."""
    monkeypatch.setattr(letter_groups, "QUEUES_MAX", 3)
    now = [0.0]
    groups = LetterGroups(store.queue, monotonic=lambda: now[0])
    bury(queue, "a")
    look(groups)
    now[0] += letter_groups.DROP_SECONDS + 1
    groups.look("other", wait_seconds=LIMIT_SECONDS)
    dropped = "jobs" not in groups._queues
    for number in range(letter_groups.QUEUES_MAX):
        now[0] += 1
        groups.ask_for(f"q{number}")
    kept = set(groups._queues)
    groups.close()

    assert dropped
    assert len(kept) == letter_groups.QUEUES_MAX
    assert "other" not in kept


def test_a_queue_that_fails_says_that_not_all_is_counted(
    queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks is answered at once all the same, and others are looked at."""
    bury(queue, "a")
    monkeypatch.setattr(letter_groups, "RETRY_SECONDS", 0.0)
    is_broken = [True]

    def find(name: str) -> Queue:
        if name == "jobs" and is_broken[0]:
            raise StorageError("no")
        return store.queue(name)

    groups = LetterGroups(find)
    failed = groups.look("jobs", wait_seconds=0.05)
    other = groups.look("other", wait_seconds=LIMIT_SECONDS)
    is_broken[0] = False
    again = look(groups)
    groups.close()

    assert (failed.is_complete, failed.groups) == (False, [])
    assert other.is_complete
    assert counts(again) == {("dead", "a"): 1}


def test_who_asks_after_the_end_is_told_what_is_known(queue: Queue, groups: LetterGroups) -> None:
    """And waits for nobody."""
    bury(queue, "a")
    look(groups)
    groups.close()
    found = look(groups)

    assert not found.is_complete
    assert [group.pattern for group in found.groups] == ["a"]


# Finding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("cause", "pattern", "after", "numbers"),
    [
        (None, "a", -1, [0, 2, 5]),
        ("dead", None, -1, [0, 1, 2, 3]),
        ("failed", "a", -1, [5]),
        ("dead", "a", 0, [2]),
        ("failed", None, 4, [5]),
        ("expired", None, -1, []),
        (None, None, 2, [3, 4, 5]),
    ],
)
def test_letters_of_a_group_are_found(
    queue: Queue,
    groups: LetterGroups,
    cause: str | None,
    pattern: str | None,
    after: int,
    numbers: list[int],
    is_known: bool,
) -> None:
    """By what is known, and whoever is not known by reading on."""
    bury(queue, "a", "b", "a", "c")
    if is_known:
        look(groups)
    bury(queue, "b", "a", cause="failed")
    if not is_known:
        groups.close()
    found = groups.like("jobs", letters_of(queue), cause=cause, pattern=pattern, after=after)
    fitting = [
        letter.number
        for letter in found
        if (cause is None or letter.cause == cause)
        and (pattern is None or letter.reason == pattern)
    ]

    assert fitting == numbers


def test_of_a_known_group_no_other_letter_is_read(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few among a million are found as fast as among a few."""
    bury(queue, *["a"] * 20, "b", *["a"] * 20)
    look(groups)
    found = groups.like("jobs", letters_of(queue), cause="dead", pattern="b", is_act=True)

    assert [letter.number for letter in found] == [20]


def test_letters_that_are_not_told_apart_are_found_one_by_one(
    queue: Queue, groups: LetterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pattern is not known, so each of them may be meant."""
    monkeypatch.setattr(letter_index, "GROUPS_MAX", 1)
    bury(queue, "a", "b", "c", "a")
    look(groups)
    found = groups.like("jobs", letters_of(queue), cause="dead", pattern="c")

    assert [letter.number for letter in found] == [1, 2]


# Over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def place(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A machine that is busy finds as much as one that is not."""
    monkeypatch.setattr(routes, "PAGE_SECONDS", LIMIT_SECONDS)
    with placed(scratch) as place:
        yield place


def ask_until_complete(place: Place) -> dict[str, object]:
    """Return the groups once all letters are counted."""
    while True:
        found = place.ask("GET", GROUPS).json
        if found["is_complete"]:
            return found


def test_groups_are_told(place: Place) -> None:
    """With how many letters are counted of how many there are."""
    queue = place.store.queue("jobs")
    bury(queue, "<b>1</b>", "<b>2</b>", "it is\nhopeless")
    (letter, *_) = reversed(list(queue.dead_letters()))
    found = ask_until_complete(place)

    assert {key: found[key] for key in ("counted", "total", "is_complete")} == {
        "counted": 3,
        "total": 3,
        "is_complete": True,
    }
    assert isinstance(found["groups"], list)
    assert found["groups"][0]["pattern"] == "<b>#</b>"
    assert found["groups"][1] == {
        "cause": "dead",
        "pattern": "it is",
        "count": 1,
        "first_us": letter.died_us,
        "last_us": letter.died_us,
        "example": {"number": 2, "id": "0-2", "reason": "it is\nhopeless"},
    }


def test_a_queue_that_is_not_there_has_no_groups_and_is_not_made(place: Place) -> None:
    """Nor is anything kept of it."""
    found = place.ask("GET", GROUPS).json
    page = place.ask("GET", f"{LETTERS}?cause=dead&pattern=x").json

    assert {**found, "as_of_us": 0} == {
        "groups": [],
        "counted": 0,
        "total": 0,
        "is_complete": True,
        "as_of_us": 0,
    }
    assert page == {"letters": [], "next": None}
    assert place.store.queues() == []
    assert place.app.letter_groups._queues == {}


def test_groups_of_a_queue_that_is_removed_meanwhile_are_gone(place: Place) -> None:
    """The next who asks is told of an empty queue."""
    bury(place.store.queue("jobs"), "a")
    before = ask_until_complete(place)["counted"]
    place.ask("DELETE", "/api/v1/queues/jobs")

    assert before == 1
    assert ask_until_complete(place)["groups"] == []


def test_more_groups_than_are_shown_are_the_last_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the counts add up."""
    monkeypatch.setattr(routes, "GROUPS_SHOWN_MAX", 3)
    bury(place.store.queue("jobs"), *"aaabbcd")
    found = ask_until_complete(place)
    bury(place.store.queue("jobs"), *"ddde")
    monkeypatch.setattr(routes, "GROUPS_SHOWN_MAX", 5)
    all_of_them = ask_until_complete(place)

    assert shown(found) == [("a", 3), ("b", 2), (OTHER, 2)]
    assert shown(all_of_them) == [("d", 4), ("a", 3), ("b", 2), ("c", 1), ("e", 1)]


def shown(found: dict[str, object]) -> list[tuple[str, int]]:
    assert isinstance(found["groups"], list)
    return [(group["pattern"], group["count"]) for group in found["groups"]]


def test_damaged_letters_are_passed_over(
    place: Place, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count among all there are, and the others are counted."""
    monkeypatch.setattr("segue.log.segment.SETTLE_SECONDS", 0)
    queue = place.store.queue("jobs")
    for reason in ("first", "second", "third"):
        bury(queue, reason)
    (path,) = (scratch / "queues" / "jobs" / "dead").glob("*.q")
    flip_bit(path, path.read_bytes().index(b"second"))
    found = ask_until_complete(place)
    again = ask_until_complete(place)
    query = urlencode({"cause": "dead", "pattern": "third"})
    page = place.ask("GET", f"{LETTERS}?{query}").json

    assert (found["counted"], found["total"]) == (2, 3)
    assert sorted(shown(found)) == sorted(shown(again)) == [("first", 1), ("third", 1)]
    assert [letter["number"] for letter in cast("list[dict[str, object]]", page["letters"])] == [2]
