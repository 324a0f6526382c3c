"""Looking for messages: waiting until there is one, one by its id, page after page of them."""

from datetime import timedelta

import pytest

from segue import QueueRules
from segue.delivery.message import MessageId
from segue.errors import InvalidArgument
from segue.stores.contract import MessageStatus, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, meanwhile, push_all
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS


def ids(page: list[MessageStatus]) -> list[str]:
    return [status.message.id for status in page]


# Waiting -----------------------------------------------------------------------------------------


def test_waiting_takes_nothing(store: Store) -> None:
    """It says that there is something, and leaves it to whoever leases."""
    queue = store.queue("jobs")
    queue.push(b"work")

    assert queue.wait(0)
    assert queue.wait(timeout=LIMIT_SECONDS)
    assert queue.wait()
    assert queue.count().ready == 1
    assert queue.lease().tries == 1


def test_waiting_for_what_was_returned_leaves_it_in_its_place(store: Store) -> None:
    """What came back first is still the first."""
    queue = store.queue("jobs")
    push_all(queue, 3)
    for job in queue.lease_many(3):
        job.release()

    assert queue.wait(0)
    assert drain(queue) == [b"0", b"1", b"2"]


def test_waiting_for_nothing_ends(store: Store) -> None:
    """False when the time is over, at once if there is none."""
    queue = store.queue("jobs")
    queue.push(b"later", delay=60)

    assert not queue.wait(0)
    assert not queue.wait(0.01)
    assert not queue.wait(timedelta(milliseconds=1))


def test_waiting_ends_with_a_push_by_somebody_else(store: Store, other: Store) -> None:
    """Whoever pushes, in whichever process, wakes those who wait."""
    queue, theirs = store.queue("jobs"), other.queue("jobs")
    with meanwhile(lambda: queue.wait(LIMIT_SECONDS)) as waited:
        theirs.push(b"work")

    assert waited.result()


def test_a_paused_queue_has_nothing_to_wait_for(store: Store, other: Store) -> None:
    """Until it is resumed."""
    queue = store.queue("jobs")
    queue.push(b"work")
    queue.pause()
    assert not queue.wait(0)

    with meanwhile(lambda: queue.wait(LIMIT_SECONDS)) as waited:
        other.queue("jobs").resume()

    assert waited.result()


def test_waiting_respects_how_many_leases_may_be_out(store: Store) -> None:
    """What nobody may lease now is not there; nobody is told QueueLocked for asking."""
    queue = store.queue("jobs", QueueRules(max_leases=1))
    push_all(queue, 2)
    job = queue.lease()
    assert not queue.wait(0)
    assert not queue.wait(0.01)

    job.ack()

    assert queue.wait(0)


def test_what_has_outlived_its_time_is_not_waited_for(store: Store, clock: ManualClock) -> None:
    """It cannot be leased; as with a lease, it becomes a dead letter when its turn comes."""
    queue = store.queue("jobs")
    queue.push(b"work", ttl=1)
    clock.advance(seconds=2)

    assert not queue.wait(0)
    assert queue.count().dead == 1


def test_waiting_ends_when_a_lease_expires(store: Store, clock: ManualClock) -> None:
    """Nobody has to do anything for it."""
    queue = store.queue("jobs")
    queue.push(b"work")
    queue.lease(ttl=1)
    assert not queue.wait(0)

    clock.advance(seconds=2)

    assert queue.wait(0)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_nobody_waits_for_less_than_nothing(store: Store, timeout: float) -> None:
    """A timeout is a duration."""
    with pytest.raises(InvalidArgument, match="timeout"):
        store.queue("jobs").wait(timeout)


# One message -------------------------------------------------------------------------------------


def test_a_message_is_found_in_every_state_of_its_life(store: Store, clock: ManualClock) -> None:
    """Ready, leased, delayed, ready again, dead, redriven, settled."""
    queue = store.queue("jobs", QueueRules(max_deliveries=2, backoff_jitter=0))
    id_ = queue.push(b"work", headers={"for": "ada"})

    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.tries, status.reason) == ("ready", 0, "")
    assert (status.message.body, status.message.headers) == (b"work", {"for": "ada"})

    job = queue.lease(ttl=10, owner="ada")
    clock.advance(seconds=4)
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.owner, status.seconds_left) == ("leased", "ada", 6)
    assert (status.message.attempt, status.tries) == (1, 1)

    job.fail("no paper", delay=5)
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.reason, status.tries) == ("delayed", "no paper", 1)
    assert (status.due_us, status.owner) == (clock() + 5_000_000, None)
    assert status.message.attempt == 2

    clock.advance(seconds=5)
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.due_us, status.reason) == ("ready", None, "no paper")

    queue.lease().fail("no ink")
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.reason, status.tries) == ("dead", "no ink", 2)
    assert status.message.body == b"work"

    queue.redrive()
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.tries, status.message.attempt) == ("ready", 0, 3)

    queue.lease().ack()
    assert queue.look_up(id_) is None


def test_what_was_pushed_with_a_delay_is_found(store: Store, clock: ManualClock) -> None:
    """By its id, before and after its time has come."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work", delay=5, priority=3)

    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.due_us) == ("delayed", clock() + 5_000_000)
    assert (status.message.priority, status.tries) == (3, 0)

    clock.advance(seconds=5)
    status = queue.look_up(id_)
    assert status is not None
    assert (status.state, status.due_us) == ("ready", None)


@pytest.mark.parametrize("id_", ["0-0", "0-1", "7-0", "later-0", "4294967294-3"])
def test_of_what_was_never_pushed_nothing_is_known(store: Store, id_: str) -> None:
    """As of what was settled."""
    queue = store.queue("jobs")
    queue.push(b"work")
    queue.pop()

    assert queue.look_up(MessageId(id_)) is None


@pytest.mark.parametrize("id_", ["", "0", "0-", "-1", "0-x", "0-0/3", "4294967295-0", 3])
def test_what_is_no_id_is_refused(store: Store, id_: str) -> None:
    """Rather than taken for one that is not there."""
    queue = store.queue("jobs")
    with pytest.raises(InvalidArgument, match="no message id"):
        queue.look_up(MessageId(id_))
    with pytest.raises(InvalidArgument, match="no message id"):
        queue.browse(after=MessageId(id_))


def test_a_message_is_found_by_everybody(store: Store, other: Store, world: World) -> None:
    """Also by who opens the store later, and after the machine was started anew."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(3)]
    queue.lease()
    queue.lease().bury("no use")

    found = [other.queue("jobs").look_up(id_) for id_ in ids]
    assert [each and each.state for each in found] == ["leased", "dead", "ready"]

    world.restart(leases_last=30)
    found = [world.open().queue("jobs").look_up(id_) for id_ in ids]
    assert [each and each.state for each in found] == ["ready", "dead", "ready"]
    assert found[0] is not None
    assert found[0].reason == "its lease expired"


# Page after page ---------------------------------------------------------------------------------


def test_messages_are_listed_by_their_ids_the_dead_last(store: Store) -> None:
    """An order that no delivery changes."""
    queue = store.queue("jobs")
    push_all(queue, 4)
    push_all(queue, 2, priority=5)
    queue.push(b"later", delay=60)
    leased, dead, returned = queue.lease_many(3)
    dead.bury("no use")
    returned.fail("no paper", delay=60)

    page = queue.browse()
    assert [(each.message.id, each.state) for each in page] == [
        (leased.id, "leased"),
        (returned.id, "delayed"),
        ("0-3", "ready"),
        ("5-0", "ready"),
        ("5-1", "ready"),
        ("later-0", "delayed"),
        (dead.id, "dead"),
    ]
    assert [queue.look_up(each.message.id) for each in page] == page


def test_pages_follow_each_other(store: Store) -> None:
    """Together they are the whole, however long each is."""
    queue = store.queue("jobs")
    push_all(queue, 9)
    push_all(queue, 3, priority=2)
    for _ in range(2):
        queue.push(b"later", delay=60)
    jobs = queue.lease_many(5)
    for job in jobs[1:4]:
        job.bury()
    whole = ids(queue.browse())
    assert len(whole) == 14

    for limit in (1, 2, 3, 5, 13, 14, 15):
        pages: list[str] = []
        while page := queue.browse(limit=limit, after=MessageId(pages[-1]) if pages else None):
            assert len(page) <= limit
            pages += ids(page)

        assert pages == whole


def test_a_page_holds_one_state_if_asked(store: Store) -> None:
    """And pages of one state follow each other, too."""
    queue = store.queue("jobs")
    push_all(queue, 8)
    queue.push(b"later", delay=60)
    jobs = queue.lease_many(5)
    for job in jobs[:3]:
        job.bury()

    assert ids(queue.browse(state="leased")) == ["0-3", "0-4"]
    assert ids(queue.browse(state="delayed")) == ["later-0"]
    assert ids(queue.browse(state="ready")) == ["0-5", "0-6", "0-7"]
    assert ids(queue.browse(state="dead")) == ["0-0", "0-1", "0-2"]
    assert ids(queue.browse(state="ready", after=MessageId("0-5"), limit=1)) == ["0-6"]
    assert ids(queue.browse(state="dead", after=MessageId("0-0"), limit=1)) == ["0-1"]


def test_paging_goes_on_behind_what_is_settled_meanwhile(store: Store) -> None:
    """Its id still says where it was."""
    queue = store.queue("jobs")
    push_all(queue, 5)
    first = ids(queue.browse(limit=2))
    queue.pop_many(3)

    assert ids(queue.browse(after=MessageId(first[-1]))) == ["0-3", "0-4"]


def test_behind_a_letter_that_is_gone_the_letters_start_over(store: Store) -> None:
    """None of them is left out."""
    queue = store.queue("jobs")
    push_all(queue, 3)
    for job in queue.lease_many(3):
        job.bury()
    queue.discard(limit=1)

    assert ids(queue.browse(state="dead", after=MessageId("0-0"))) == ["0-1", "0-2"]


def test_listing_reads_no_more_than_it_shows(store: Store) -> None:
    """What waits behind is not touched, and nothing is taken."""
    queue = store.queue("jobs")
    queue.push_many([b"%d" % number for number in range(2_000)])

    page = queue.browse(limit=10)

    assert [each.message.body for each in page] == [b"%d" % number for number in range(10)]
    assert queue.count().ready == 2_000


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True])
def test_a_page_has_a_size(store: Store, limit: int) -> None:
    """From one to as many as a call delivers."""
    with pytest.raises(InvalidArgument, match="limit"):
        store.queue("jobs").browse(limit=limit)


def test_an_unknown_state_is_refused(store: Store) -> None:
    """Rather than found nowhere."""
    with pytest.raises(InvalidArgument, match="state must be one of"):
        store.queue("jobs").browse(state="gone")  # type: ignore[arg-type]


# Tries -------------------------------------------------------------------------------------------


def test_tries_begin_anew_with_a_redrive(store: Store) -> None:
    """The attempt goes on: somebody may have seen the message before."""
    queue = store.queue("jobs", QueueRules(max_deliveries=2))
    queue.push(b"work")
    seen = []
    for _ in range(2):
        for _ in range(2):
            job = queue.lease()
            seen.append((job.attempt, job.tries))
            job.fail(delay=0)
        queue.redrive()

    assert seen == [(1, 1), (2, 2), (3, 1), (4, 2)]


def test_a_dead_letter_knows_its_tries_since_the_last_redrive(store: Store) -> None:
    """Its deliveries are those of its whole life."""
    queue = store.queue("jobs", QueueRules(max_deliveries=2))
    queue.push(b"work")
    for _ in range(2):
        queue.lease().fail(delay=0)
    queue.redrive()
    queue.lease().bury()

    (letter,) = queue.dead_letters()
    assert (letter.deliveries, letter.tries) == (3, 1)
    assert [each.tries for each in queue.browse(state="dead")] == [1]


def test_what_is_replayed_is_tried_for_the_first_time(store: Store) -> None:
    """Although its attempt says that it may have been seen."""
    queue = store.queue("jobs", QueueRules(keep_seconds=60))
    queue.push(b"work")
    queue.lease().ack()
    queue.replay()

    job = queue.lease()
    assert (job.attempt, job.tries) == (2, 1)
