"""Pushing: what is taken, what is refused, and that a refusal writes nothing."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest

from segue import Item, QueueRules
from segue.delivery.message import HEADERS_BYTES_MAX, KEY_CHARACTERS_MAX, Body
from segue.delivery.priority import PRIORITY_MAX
from segue.errors import InvalidArgument, RecordTooLarge
from segue.log.options import Duration
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, push_all
from tests.contract.worlds import World

EMPTY = Counts(ready=0, delayed=0, leased=0, dead=0)
NO_PRIORITIES = [True, False, 1.0, 0.0, -1, PRIORITY_MAX + 1, "urgent", "0", "", None, [0], b"low"]
BAD_ITEMS = [
    Item(body=b"", priority=-1),
    Item(body=b"", delay=-1),
    Item(body=b"", ttl=0),
    Item(body=b"", key=""),
    Item(body=b"", headers={"a": 1}),  # type: ignore[dict-item]
    Item(body=5),  # type: ignore[arg-type]
]
TOO_LARGE_BYTES = 16 * 1024 * 1024


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue without any rules of its own."""
    return store.queue("jobs")


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


# Bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"bytes", bytearray(b"array"), memoryview(b"v-i-e-w")[::2], "tëxt", b"", "", bytes(70_000)],
    ids=lambda body: f"{type(body).__name__}-{len(body)}",
)
def test_bytes_and_text_come_back_as_bytes(queue: Queue, there: Queue, body: Body) -> None:
    """A body is bytes; text is its UTF-8."""
    queue.push(body)
    queue.push_many([body])
    expected = body.encode() if isinstance(body, str) else bytes(body)

    assert drain(there) == [expected, expected]


def test_anything_else_is_no_body(queue: Queue) -> None:
    """Bad arguments raise InvalidArgument before anything is written."""
    for body in [None, 5, 1.5, {"a": 1}, ["a"], "\ud800"]:
        with pytest.raises(InvalidArgument):
            queue.push(body)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.push_many([b"good", body])  # type: ignore[list-item]

    assert queue.count() == EMPTY


def test_a_body_that_fits_in_no_segment_is_refused(queue: Queue) -> None:
    """What can never be stored is refused with its size, alone or among others."""
    huge = bytes(TOO_LARGE_BYTES)
    with pytest.raises(RecordTooLarge):
        queue.push(huge)
    with pytest.raises(RecordTooLarge):
        queue.push_many([Item(body=b"a", priority=1), Item(body=huge, priority=2), b"c"])

    assert queue.count() == EMPTY


def test_a_message_says_when_it_was_pushed(queue: Queue, clock: ManualClock) -> None:
    """The time of the push stays with the message, however late it is delivered."""
    pushed_us = clock()
    queue.push(b"job")
    clock.advance(seconds=90)
    message = queue.pop()

    assert message is not None
    assert (message.pushed_us, message.pushed_at.timestamp() * 1e6) == (pushed_us, pushed_us)


# Priorities --------------------------------------------------------------------------------


def test_only_whole_numbers_from_zero_on_and_names_are_priorities(
    queue: Queue, there: Queue
) -> None:
    """0.2.2: bad input creates nothing."""
    for priority in NO_PRIORITIES:
        with pytest.raises(InvalidArgument):
            queue.push(b"job", priority=priority)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.push_many([b"good", Item(body=b"bad", priority=priority)])  # type: ignore[arg-type]

    assert (there.count(), there.stats().ready_by_priority) == (EMPTY, {})


def test_names_are_numbers(queue: Queue) -> None:
    """critical, high, normal and low are 0 to 3; without a word it is 0."""
    for name in ("low", "normal", "high", "critical"):
        queue.push(name, priority=name)
    queue.push("plain")
    queue.push_many([Item(body="named", priority="low")])
    order = [(message.text, message.priority) for message in queue.pop_many(10)]

    assert order == [
        ("critical", 0),
        ("plain", 0),
        ("high", 1),
        ("normal", 2),
        ("low", 3),
        ("named", 3),
    ]


def test_priorities_may_lie_far_apart(queue: Queue, there: Queue) -> None:
    """0.1.e: any number will do, and sparse ones cost nothing but themselves."""
    for priority in (PRIORITY_MAX, 1_000, 7, 100, 0):
        queue.push(b"%d" % priority, priority=priority)

    assert drain(there) == [b"0", b"7", b"100", b"1000", b"%d" % PRIORITY_MAX]


# Many at once ------------------------------------------------------------------------------


def test_ids_come_in_the_order_of_the_items(queue: Queue) -> None:
    """Each item gets the id of its own message, whatever their priorities."""
    items = [Item(body=b"%d" % number, priority=number % 3) for number in range(9)]
    ids = queue.push_many(items)
    bodies = {message.id: message.body for message in queue.pop_many(9)}

    assert [bodies[id_] for id_ in ids] == [item.body for item in items]
    assert len(set(ids)) == 9


def test_plain_bodies_and_items_may_be_mixed(queue: Queue) -> None:
    """A body alone is an item with nothing else to say; any iterable will do."""

    def bodies() -> Iterator[Item | Body]:
        yield b"a"
        yield "b"
        yield Item(body=b"c", headers={"n": "3"})

    assert len(queue.push_many(bodies())) == 3
    assert drain(queue) == [b"a", b"b", b"c"]


def test_one_bad_item_and_nothing_is_pushed(queue: Queue, there: Queue) -> None:
    """All or none, wherever the bad one stands and whatever priorities the others have."""
    good: list[Item | Body] = [
        b"plain",
        Item(body=b"high", priority=1),
        Item(body=b"later", delay=1),
        Item(body=b"keyed", key="k"),
    ]
    for bad, place in product(BAD_ITEMS, (0, 2, 4)):
        with pytest.raises(InvalidArgument):
            queue.push_many([*good[:place], bad, *good[place:]])

    assert there.count() == EMPTY
    assert there.push(b"keyed", key="k")
    assert drain(there) == [b"keyed"]


def test_items_that_cannot_be_had_push_nothing(queue: Queue) -> None:
    """An iterable that breaks half-way has pushed nothing."""

    def bodies() -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        queue.push_many(bodies())

    assert queue.count() == EMPTY


def test_one_body_is_not_many(queue: Queue) -> None:
    """push_many("abc") is a mistake, not three messages."""
    for items in ["text", b"bytes", bytearray(b"array"), memoryview(b"view")]:
        with pytest.raises(InvalidArgument):
            queue.push_many(items)  # type: ignore[arg-type]

    assert queue.count() == EMPTY


def test_pushing_nothing_does_nothing(queue: Queue) -> None:
    """No items, no ids."""
    assert queue.push_many([]) == []
    assert queue.count() == EMPTY


def test_any_number_may_be_pushed_at_once(store: Store, other: Store) -> None:
    """Also where segments hold few: more than fit in one become several batches, in order."""
    queue = store.queue("jobs", QueueRules(segment_items=4))
    plain = [b"%d" % number for number in range(10)]
    mixed = [Item(body=b"%d" % number, priority=number % 2) for number in range(20)]
    ids = [*queue.push_many(plain), *queue.push_many(mixed)]
    messages = other.queue("jobs").pop_many(50)

    assert len(set(ids)) == 30
    assert {message.id for message in messages} == set(ids)
    assert [message.body for message in messages] == [
        *plain,
        *[b"%d" % number for number in range(0, 20, 2)],
        *[b"%d" % number for number in range(1, 20, 2)],
    ]


def test_a_batch_is_pushed_though_segments_have_become_smaller(
    store: Store, other: Store, world: World
) -> None:
    """It has more messages than a new segment takes, and more than the open one has room for."""
    queue = store.queue("jobs", QueueRules(segment_items=8))
    queue.push_many([b"%d" % number for number in range(5)])
    other.queue("jobs").configure(QueueRules(segment_items=2))
    late = world.open().queue("jobs")
    late.push_many([b"%d" % number for number in range(5, 13)])
    late.push_many([Item(body=b"%d" % number, group="x") for number in range(13, 20)])

    assert drain(queue) == [b"%d" % number for number in range(20)]


def test_a_push_that_returned_outlives_its_process(world: World, queue: Queue) -> None:
    """C1: what was pushed is there after a kill."""
    dying = world.open()
    doomed = dying.queue("jobs")
    push_all(doomed, 5)
    doomed.push_many([Item(body=b"urgent", priority=0), Item(body=b"late", priority=9)])
    doomed.push(b"delayed", delay=1)
    world.crash(dying)
    world.clock.advance(seconds=1)

    assert drain(queue) == [b"delayed", b"0", b"1", b"2", b"3", b"4", b"urgent", b"late"]


# Headers -----------------------------------------------------------------------------------


def test_headers_stay_with_the_message(queue: Queue, there: Queue) -> None:
    """Headers are text by text, on disk, through leases, returns and death."""
    headers = {"trace": "ä☃", "": "empty name", "empty": ""}
    queue.push(b"job", headers=headers)
    job = there.lease()
    seen = [dict(job.headers)]
    job.release()
    again = queue.lease()
    seen.append(dict(again.headers))
    again.bury()
    (letter,) = there.dead_letters()
    seen.append(dict(letter.message.headers))

    assert seen == [headers] * 3
    assert letter.message.body == b"job"


def test_headers_are_text_by_text(queue: Queue) -> None:
    """Anything else is refused, and nothing is written."""
    for headers in [
        {"a": 1},
        {1: "a"},
        {"a": None},
        [("a", "b")],
        "a",
        {"a": "\ud800"},
        {"\udfff": "a"},
    ]:
        with pytest.raises(InvalidArgument):
            queue.push(b"job", headers=headers)  # type: ignore[arg-type]

    assert queue.count() == EMPTY


def test_headers_have_a_limit(queue: Queue) -> None:
    """Headers are for a few words; what is large belongs into the body."""
    queue.push(b"fits", headers={"a": "x" * (HEADERS_BYTES_MAX - 1)})
    with pytest.raises(InvalidArgument):
        queue.push(b"does not", headers={"a": "x" * HEADERS_BYTES_MAX})

    assert drain(queue) == [b"fits"]


# Delay -------------------------------------------------------------------------------------


def test_a_delayed_message_is_never_early(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """C10: not a millisecond before its time, and then at once."""
    queue.push(b"later", delay=timedelta(seconds=10), priority=3)
    clock.advance(ms=9_999)
    early = (queue.pop(), there.pop(), there.peek(), there.count())
    clock.advance(ms=1)
    message = there.pop()

    assert early == (None, None, [], Counts(ready=0, delayed=1, leased=0, dead=0))
    assert message is not None
    assert (message.body, message.priority, message.attempt) == (b"later", 3, 1)


def test_a_delay_survives_everybody(world: World, queue: Queue) -> None:
    """C10: the delay is on disk, so no process and no machine needs to stay up for it."""
    dying = world.open()
    id_ = dying.queue("jobs").push(b"later", delay=10)
    world.restart()
    first = world.open().queue("jobs")
    early = first.pop()
    world.clock.advance(seconds=10)
    message = world.open().queue("jobs").pop()

    assert early is None
    assert message is not None
    assert (message.id, message.body) == (id_, b"later")


def test_delayed_messages_come_by_the_time_they_are_due(queue: Queue, clock: ManualClock) -> None:
    """In the order of their times, whatever order they were pushed in."""
    for seconds in (30, 10, 20):
        queue.push(b"%d" % seconds, delay=seconds)
    queue.push_many([Item(body=b"25", delay=25), Item(body=b"5", delay=5)])
    clock.advance(seconds=60)

    assert drain(queue) == [b"5", b"10", b"20", b"25", b"30"]


def test_no_delay_is_no_delay(queue: Queue) -> None:
    """A delay of nothing leaves the message in line."""
    queue.push(b"a", delay=0)
    queue.push(b"b", delay=timedelta())
    queue.push(b"c")

    assert drain(queue) == [b"a", b"b", b"c"]


def test_a_delayed_message_keeps_its_priority(queue: Queue, clock: ManualClock) -> None:
    """Once it is due it stands where its priority says."""
    queue.push(b"low later", priority=5, delay=1)
    queue.push(b"high later", priority=1, delay=2)
    push_all(queue, 1, priority=2)
    clock.advance(seconds=3)

    assert drain(queue) == [b"high later", b"0", b"low later"]


def test_times_are_seconds_that_are_not_negative(queue: Queue) -> None:
    """A delay or a time to live that makes no sense is refused before anything is written."""
    for duration in [-1, -0.5, float("nan"), float("inf"), "1", True]:
        with pytest.raises(InvalidArgument):
            queue.push(b"job", delay=duration)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.push(b"job", ttl=duration)  # type: ignore[arg-type]

    assert queue.count() == EMPTY


@pytest.mark.parametrize("delay", [timedelta.max, 1e15, 1e300], ids=repr)
def test_a_delay_beyond_all_time_harms_nobody(
    queue: Queue, there: Queue, world: World, delay: Duration
) -> None:
    """One senseless argument is refused; it must not make the queue unusable for everybody."""
    with pytest.raises(InvalidArgument):
        queue.push(b"never", delay=delay)
    queue.push(b"now")

    assert there.count() == Counts(ready=1, delayed=0, leased=0, dead=0)
    assert world.open().queue("jobs").pop() is not None


# Time to live ------------------------------------------------------------------------------


def test_a_message_is_not_delivered_after_its_time(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """What is outlived goes to the dead letters, which say so, and others take its turn."""
    id_ = queue.push(b"brief", ttl=10, priority=1, headers={"a": "b"})
    queue.push(b"lasting", priority=1)
    clock.advance(seconds=10)
    message = there.pop()
    (letter,) = queue.dead_letters()

    assert message is not None
    assert message.body == b"lasting"
    assert (letter.message.id, letter.cause, letter.deliveries) == (id_, "outlived", 0)
    assert (letter.message.body, letter.message.priority) == (b"brief", 1)
    assert letter.reason


def test_a_message_is_delivered_within_its_time(queue: Queue, clock: ManualClock) -> None:
    """Up to the last moment, and it says when that is."""
    queue.push(b"brief", ttl=10)
    until_us = clock() + 10_000_000
    clock.advance(ms=9_999)
    message = queue.pop()

    assert message is not None
    assert message.expires_us == until_us


def test_outlived_messages_can_be_dropped(store: Store, clock: ManualClock) -> None:
    """on_expiry="drop": nobody keeps what nobody wants."""
    queue = store.queue("jobs", QueueRules(on_expiry="drop"))
    queue.push(b"brief", ttl=1)
    queue.push(b"brief and later", ttl=1, delay=2)
    queue.push(b"lasting")
    clock.advance(seconds=5)

    assert drain(queue) == [b"lasting"]
    assert queue.count() == EMPTY
    assert queue.stats().totals["outlived"] == 2


def test_what_is_leased_in_time_may_be_settled_later(queue: Queue, clock: ManualClock) -> None:
    """The time to live is for waiting, not for working."""
    queue.push(b"brief", ttl=1)
    job = queue.lease(ttl=100)
    clock.advance(seconds=50)
    job.ack()

    assert queue.count() == EMPTY


def test_a_message_that_comes_back_too_late_is_outlived(queue: Queue, clock: ManualClock) -> None:
    """Its time goes on while it is leased; its deliveries are remembered."""
    queue.push(b"brief", ttl=10)
    queue.lease(ttl=20)
    clock.advance(seconds=20)
    found = queue.pop()
    (letter,) = queue.dead_letters()

    assert found is None
    assert (letter.cause, letter.deliveries) == ("outlived", 1)


def test_outlived_messages_among_others_keep_nobody_from_delivery(
    queue: Queue, clock: ManualClock
) -> None:
    """A batch of which some are outlived delivers all others, in order."""
    for number in range(10):
        queue.push(b"%d" % number, ttl=1 if number % 3 == 1 else None)
    clock.advance(seconds=1)
    bodies = []
    while messages := queue.pop_many(4):
        bodies += [message.body for message in messages]

    assert bodies == [b"0", b"2", b"3", b"5", b"6", b"8", b"9"]
    assert queue.count().dead == 3


def test_peek_shows_no_outlived_message(queue: Queue, clock: ManualClock) -> None:
    """It shows what would be delivered."""
    queue.push(b"brief", ttl=1)
    queue.push(b"lasting")
    clock.advance(seconds=1)

    assert [message.body for message in queue.peek(5)] == [b"lasting"]


# Deduplication -----------------------------------------------------------------------------


def test_a_key_that_was_used_does_nothing(queue: Queue, there: Queue) -> None:
    """A push with the key of another returns that one's id, in every process."""
    first = queue.push(b"a", key="k")
    second = queue.push(b"b", key="k", priority=5)
    third = there.push(b"c", key="k", delay=5)
    different = there.push(b"d", key="l")

    assert (second, third) == (first, first)
    assert different != first
    assert drain(queue) == [b"a", b"d"]


def test_a_key_that_was_used_holds_after_the_message_is_settled(queue: Queue, there: Queue) -> None:
    """Asking twice for the same work gets it done once, also when the first is done already."""
    first = queue.push(b"a", key="k")
    drain(queue)
    second = there.push(b"b", key="k")

    assert second == first
    assert there.count() == EMPTY


def test_two_of_a_key_in_one_call_are_one(queue: Queue) -> None:
    """They get the same id, the others their own."""
    known = queue.push(b"known", key="k")
    ids = queue.push_many(
        [
            Item(body=b"a", key="x"),
            Item(body=b"b"),
            Item(body=b"c", key="x", priority=1),
            Item(body=b"d", key="k"),
            Item(body=b"e", key="y", priority=1),
        ]
    )

    assert ids[0] == ids[2]
    assert ids[3] == known
    assert len(set(ids)) == 4
    assert drain(queue) == [b"known", b"a", b"b", b"e"]


def test_a_key_is_free_again_after_its_window(store: Store, clock: ManualClock) -> None:
    """The window begins with the push that was taken, and the ones refused do not prolong it."""
    queue = store.queue("jobs", QueueRules(dedup_window=60))
    first = queue.push(b"a", key="k")
    drain(queue)
    clock.advance(ms=59_999)
    within = queue.push(b"b", key="k")
    clock.advance(ms=1)
    after = queue.push(b"c", key="k")

    assert within == first
    assert after != first
    assert drain(queue) == [b"c"]


def test_two_of_a_key_a_window_apart_are_both_delivered(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Both pushes returned an id of their own: a slow consumer must not lose the first."""
    first = queue.push(b"a", key="k")
    clock.advance(seconds=queue.rules.dedup_window + 1)
    second = there.push(b"b", key="k")
    delivered = drain(there)

    assert first != second
    assert delivered == [b"a", b"b"]


def test_two_of_a_key_a_window_apart_are_both_delivered_also_if_one_was_released(
    queue: Queue, clock: ManualClock
) -> None:
    """As if it had never been taken means: still to be delivered."""
    queue.push(b"a", key="k")
    job = queue.lease(ttl=1_000)
    clock.advance(seconds=queue.rules.dedup_window + 1)
    queue.push(b"b", key="k")
    job.release()

    assert drain(queue) == [b"a", b"b"]


def test_two_delayed_of_a_key_a_window_apart_are_both_delivered(
    queue: Queue, clock: ManualClock
) -> None:
    """The same for what waits aside."""
    window = queue.rules.dedup_window
    queue.push(b"a", key="k", delay=3 * window)
    clock.advance(seconds=window + 1)
    queue.push(b"b", key="k", delay=3 * window)
    clock.advance(seconds=4 * window)

    assert drain(queue) == [b"a", b"b"]


def test_a_longer_window_takes_nothing_back(store: Store, clock: ManualClock) -> None:
    """What was taken in under the rules of its time is delivered, whatever the rules are now."""
    queue = store.queue("jobs", QueueRules(dedup_window=10))
    queue.push(b"a", key="k")
    clock.advance(seconds=20)
    queue.push(b"b", key="k")
    queue.configure(QueueRules(dedup_window=300))

    assert drain(queue) == [b"a", b"b"]


def test_a_clock_that_was_set_back_makes_no_window_longer(queue: Queue, clock: ManualClock) -> None:
    """A delivery must not bring a key back whose window is over."""
    queue.push(b"before")
    clock.step(seconds=-100_000)
    first = queue.push(b"a", key="k")
    clock.advance(seconds=queue.rules.dedup_window + 1)
    queue.push(b"other", key="l")
    drain(queue)
    second = queue.push(b"b", key="k")

    assert second != first
    assert drain(queue) == [b"b"]


def test_keys_survive_everybody(world: World, queue: Queue) -> None:
    """The window is on disk."""
    first = queue.push(b"a", key="k")
    world.restart()
    second = world.open().queue("jobs").push(b"b", key="k")

    assert second == first


def test_a_window_of_nothing_means_no_deduplication(store: Store) -> None:
    """dedup_window=0: every push counts."""
    queue = store.queue("jobs", QueueRules(dedup_window=0))
    ids = [queue.push(b"a", key="k"), queue.push(b"b", key="k")]

    assert len(set(ids)) == 2
    assert drain(queue) == [b"a", b"b"]


def test_a_key_stays_with_the_message(queue: Queue) -> None:
    """Whoever delivers can see what a message was deduplicated by."""
    queue.push(b"job", key="order 17")
    job = queue.lease()

    assert job.key == "order 17"


def test_a_key_is_text(queue: Queue) -> None:
    """Anything else is refused, and nothing is written."""
    for key in ["", 5, b"k", True, "x" * (KEY_CHARACTERS_MAX + 1), "\ud800"]:
        with pytest.raises(InvalidArgument):
            queue.push(b"job", key=key)  # type: ignore[arg-type]

    assert queue.count() == EMPTY


def test_keys_of_one_queue_mean_nothing_in_another(store: Store) -> None:
    """A key belongs to its queue."""
    one, two = store.queue("one"), store.queue("two")
    one.push(b"a", key="k")
    two.push(b"b", key="k")

    assert drain(two) == [b"b"]


def test_the_longest_key_is_a_key(queue: Queue) -> None:
    """However long it is, it is compared whole."""
    long = "k" * KEY_CHARACTERS_MAX
    first = queue.push(b"a", key=long)

    assert queue.push(b"b", key=long) == first
    assert queue.push(b"c", key=long[:-1]) != first


# Waiting -----------------------------------------------------------------------------------


def test_a_wait_is_checked_whether_or_not_it_is_needed(queue: Queue) -> None:
    """Bad arguments raise InvalidArgument before anything is written."""
    queue.push(b"first")
    for wait in [-1, "1", True, float("nan")]:
        with pytest.raises(InvalidArgument):
            queue.push(b"job", wait=wait)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.push_many([b"job"], wait=wait)  # type: ignore[arg-type]

    assert drain(queue) == [b"first"]
