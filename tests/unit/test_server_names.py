"""Queues that are not there: who asks for one is answered as by an empty one, and makes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.log.options import SyncName
from segue.server.open_queues import OpenQueues
from segue.stores.contract import Queue
from segue.stores.file.absent import AbsentQueue
from segue.stores.opening import open_directory, open_http
from tests.unit.server_support import Place, new_token, placed
from tests.unit.support import failing_cases
from tests.waiting import LIMIT_SECONDS

HERE, NOT_HERE = "vacant", "nobody"
"""Of the same length, so that answers are to the byte."""
LATEST = "18446744073709551615"
QUEUE, TASK, ACTOR = "/api/v1/queues/{}", "/api/v1/tasks/{}", "/v1.0/actors/PushPopActor/{}"
LOOKS = [
    *(f"{QUEUE}{rest}" for rest in ("/count", "/rules", "/state", "/history", "/messages")),
    *(f"{QUEUE}/peek{rest}" for rest in ("", "?count=5", "?count=0", "?count=10001", "?count=x")),
    *(f"{QUEUE}/messages{rest}" for rest in ("?state=dead", "?state=x", "?limit=0", "?after=0-7")),
    *(f"{QUEUE}/messages{rest}" for rest in ("?after=x", "/0-0", "/later-1", "/x", f"/{LATEST}-0")),
    *(f"{QUEUE}/state?key={key}" for key in ("metadata", "queue_0_seg_0", "queue_0_seg_x", "x")),
    *(f"{QUEUE}/history{rest}" for rest in ("?priority=0", "?priority=-1", "?start=1", "?stop=1")),
    *(f"{QUEUE}/history{rest}" for rest in ("?priority=0&start=5", "?start_us=5", "?after=0-1")),
    *(f"{QUEUE}/dead-letters{rest}" for rest in ("", "?limit=0", "?after=7", "/all")),
    *(f"{TASK}/{rest}" for rest in ("0-0", "0-0/result")),
    *(f"{ACTOR}/state/{key}" for key in ("metadata", "queue_0_seg_0", "x")),
]
LOST = "0-0/17"
TAKES: list[tuple[str, object]] = [
    *((f"{QUEUE}/pop", body) for body in ({}, {"count": 5}, {"count": 0}, {"count": 10_001})),
    *((f"{QUEUE}/lease", body) for body in ({}, {"ttl": -1}, {"ttl": 1e9}, {"owner": "a\nb"})),
    (f"{QUEUE}/wait", {"timeout": 0}),
    *((f"{QUEUE}/ack", {"receipts": found}) for found in ([], [LOST], [LOST, "1-2/3"], ["x"])),
    *((f"{QUEUE}/nack", {"receipt": LOST, **more}) for more in ({}, {"delay": -1})),
    *((f"{QUEUE}/nack", {"receipt": LOST, "outcome": how}) for how in ("dead", "release", "odd")),
    *((f"{QUEUE}/extend", {"receipt": LOST, **more}) for more in ({}, {"ttl": -1}, {"ttl": 5})),
    (f"{QUEUE}/nack", {"receipt": "x"}),
    (f"{QUEUE}/extend", {"receipt": "x"}),
    (f"{QUEUE}/purge", {}),
    *((f"{QUEUE}/replay", body) for body in ({}, {"priority": -1}, {"start": 1})),
    *((f"{QUEUE}/dead-letters/redrive", body) for body in ({}, {"rate": -1}, {"limit": -1})),
    *((f"{QUEUE}/dead-letters/discard", body) for body in ({}, {"limit": 3}, {"limit": -1})),
    (f"{TASK}/0-0/cancel", {}),
    (f"{TASK}/0-0/retry", {}),
    ("/queue/{}/pop", {}),
    ("/queue/{}/pop?require_ack=true", {}),
    ("/queue/{}/acknowledge", {"lock_id": "0-0.17"}),
    ("/queue/{}/extend-lock", {"lock_id": "0-0.17"}),
    ("/queue/{}/deadletter", {"lock_id": "0-0.17"}),
    (f"{ACTOR}/method/Pop", {}),
    (f"{ACTOR}/method/PopWithAck", {}),
]


def made(place: Place) -> set[str]:
    """Return what is on disk of queues."""
    return {path.name for path in (place.store.place.root / "queues").glob("*")}


@pytest.fixture(params=["os", "always"])
def place(scratch: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A directory with a queue in which nothing is, behind a server."""
    sync: SyncName = request.param
    with placed(scratch, sync=sync) as place:
        place.store.queue(HERE).resume()
        place.ask("GET", "/api/v1/tasks")  # Where tasks are noted is no matter here.
        yield place


def test_who_looks_sees_an_empty_queue_and_makes_nothing(place: Place) -> None:
    """Anybody who may read could fill the disk with names, a page in a browser among them."""

    def check(path: str) -> None:
        empty = place.ask("GET", path.format(HERE))
        absent = place.ask("GET", path.format(NOT_HERE))

        assert absent.status == empty.status
        assert absent.data == empty.data.replace(HERE.encode(), NOT_HERE.encode())
        assert made(place) == {HERE}
        assert place.store._queues.keys() == {HERE}

    assert failing_cases(check, LOOKS) == []


def test_what_an_operator_sees_of_a_queue_that_is_not_there_is_that_it_takes_up_nothing(
    place: Place,
) -> None:
    """All else is as of an empty one."""
    empty = place.ask("GET", QUEUE.format(HERE)).json
    absent = place.ask("GET", QUEUE.format(NOT_HERE)).json

    assert absent == {**empty, "name": NOT_HERE, "size_bytes": 0}
    assert made(place) == {HERE}


def test_who_takes_from_nothing_is_answered_as_by_an_empty_queue_and_makes_nothing(
    place: Place,
) -> None:
    """Leases and receipts, good and bad: there can be nothing behind them."""

    def check(path: str, body: object) -> None:
        empty = place.ask("POST", path.format(HERE), body)
        absent = place.ask("POST", path.format(NOT_HERE), body)

        assert absent.status == empty.status
        assert absent.data == empty.data.replace(HERE.encode(), NOT_HERE.encode())
        assert made(place) == {HERE}

    assert failing_cases(check, TAKES) == []


@pytest.mark.parametrize("path", ["%20x/count", "../count", f"{'x' * 300}/count", ".x/rules"])
def test_a_name_that_makes_no_sense_is_refused_as_ever(place: Place, path: str) -> None:
    """That there is no such queue is no answer to that."""
    answer = place.ask("GET", f"/api/v1/queues/{path}")

    assert answer.status in (400, 404)
    assert made(place) == {HERE}


def test_who_may_only_read_leaves_nothing_on_disk(scratch: Path) -> None:
    """However many names it asks for, and however long the server runs."""
    _, reader = new_token(scratch / "tokens.json", "read")
    with placed(scratch / "data", tokens=scratch / "tokens.json") as place:
        asked = [
            place.ask("GET", f"/api/v1/queues/n{number}/count", Authorization=reader)
            for number in range(400)
        ]
        found = made(place)

    assert {answer.status for answer in asked} == {200}
    assert found == set()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{QUEUE}/messages", {"messages": [{"body": "x"}]}),
        ("PUT", f"{QUEUE}/rules", {"capacity": 5}),
        ("POST", f"{QUEUE}/pause", {}),
        ("POST", f"{QUEUE}/resume", {}),
        ("POST", TASK, {"task": "send"}),
        ("POST", "/queue/{}/push", {"item": {"a": 1}}),
        ("PUT", f"{ACTOR}/method/Push", {"item": {"a": 1}}),
    ],
)
def test_who_puts_something_in_makes_the_queue(
    place: Place, method: str, path: str, body: object
) -> None:
    """Whichever way it is done, and though it was looked at before."""
    place.ask("GET", f"{QUEUE.format(NOT_HERE)}/count")
    answer = place.ask(method, path.format(NOT_HERE), body)

    assert answer.status in (200, 204)
    assert NOT_HERE in place.store.queues()


def test_a_task_that_makes_no_sense_makes_no_queue(place: Place) -> None:
    """What is wrong with it is known before anything is opened."""
    answer = place.ask("POST", TASK.format(NOT_HERE), {"task": ""})

    assert answer.status == 400
    assert made(place) == {HERE}


def test_a_queue_that_another_process_makes_is_there_for_who_looked_before(scratch: Path) -> None:
    """Nothing is remembered of its not being there."""
    with placed(scratch) as place, open_directory(scratch, sync="os") as other:
        before = place.count("jobs")
        other.queue("jobs").push(b"x")
        after = place.count("jobs")

    assert (before["ready"], after["ready"]) == (0, 1)


# As Python sees it ---------------------------------------------------------------------------


def absent_queue(place: Place, name: str) -> Queue:
    """Return what stands for a queue that is not there."""
    found = OpenQueues(place.store, lambda _: False).find(name)
    assert isinstance(found, AbsentQueue)
    return found


def test_what_stands_for_a_queue_is_as_good_as_the_queue_once_it_is_there(place: Place) -> None:
    """Whoever has it already goes on with it, as one who waits for a message does."""
    absent = absent_queue(place, "jobs")
    queue = place.store.queue("jobs")
    queue.push_many([b"a", b"b", b"c", b"d"])
    first = absent.lease()
    second, third = absent.lease_many(2)
    absent.extend(first.receipt, ttl=60)
    absent.ack(first.receipt)
    absent.nack(second.receipt, outcome="dead")
    absent.nack(third.receipt, outcome="release")

    assert absent.wait(0)
    assert [letter.message.body for letter in absent.dead_letters()] == [b"b"]
    assert [message.body for message in absent.history()][:1] == [b"a"]
    assert absent.redrive().redriven == 1
    assert absent.count() == queue.count()
    assert absent.stats().counts == queue.count()
    assert absent.state() == queue.state()
    assert absent.browse() == queue.browse()
    assert absent.look_up(second.message.id) == queue.look_up(second.message.id)
    assert absent.rules == queue.rules
    assert absent.peek(9) == queue.peek(9)
    assert absent.replay() > 0
    message = absent.pop()
    assert message is not None
    assert absent.purge() > 0
    assert absent.discard() == 0


def test_who_waits_for_long_makes_the_queue(place: Place) -> None:
    """Whoever pushes, in whichever process, wakes who waits by its files."""
    absent = absent_queue(place, "jobs")

    assert not absent.wait(0.001)
    assert made(place) == {HERE, "jobs"}


def test_a_client_works_with_a_queue_that_is_not_there_yet(scratch: Path) -> None:
    """From looking to waiting to the first push, by one handle."""
    with placed(scratch) as place, open_http(place.url) as store:
        queue = store.queue("jobs")
        before = (queue.count().total, queue.pop(), queue.peek(), made(place))
        queue.push(b"x")
        with queue.lease(wait=LIMIT_SECONDS) as job:
            body = job.body

    assert before == (0, None, [], set())
    assert body == b"x"


def test_a_queue_that_was_made_is_no_more_asked_about_than_any_other(place: Place) -> None:
    """The first push makes it; from then on nothing stands between requests and the queue."""
    place.push("new")
    queues = place.app.queues

    assert queues.phantoms == {}
    assert not queues.is_new("new")
