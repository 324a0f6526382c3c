"""Those who wait for a message: who is woken, for whom nothing is taken, and what they hold."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.server import app, threads
from segue.server.refusal import Refused
from segue.server.waiting import PATIENCE_SECONDS as PATIENCE
from segue.server.waiting import SLOW_MAX, Waiting
from segue.stores.opening import open_http
from tests.unit.server_support import PATIENCE_SECONDS, Place, cut, placed, until

LONG_SECONDS = 10 * PATIENCE_SECONDS
"""Nobody here waits so long."""


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it, which must not take long."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await scenario()

    asyncio.run(bounded())


# Looking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Refused(503, "overloaded", "too many requests are under way"), RuntimeError("odd")]
)
def test_looking_goes_on_after_a_look_that_failed(error: Exception) -> None:
    """Whatever fails once, messages of others are found as soon as before."""
    failures = [error]

    async def look(queue: str) -> int:
        if failures:
            raise failures.pop()
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        await waiting.until("jobs", LONG_SECONDS)  # Told to look for itself.
        await waiting.until("jobs", LONG_SECONDS)
        waiting.close()

    run(scenario)

    assert failures == []


def test_a_queue_that_cannot_be_looked_at_keeps_nobody_from_another() -> None:
    """Each is looked at, whatever becomes of the one before it."""

    async def look(queue: str) -> int:
        if queue == "bad":
            raise Refused(503, "overloaded", "too many requests are under way")
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        bad = asyncio.create_task(waiting.until("bad", LONG_SECONDS))
        await waiting.until("good", LONG_SECONDS)
        await bad
        waiting.close()

    run(scenario)


def test_looking_begins_anew_when_it_was_ended() -> None:
    """Who comes to wait needs somebody who looks, whatever became of the last one who did."""

    async def look(queue: str) -> int:
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        await waiting.until("jobs", LONG_SECONDS)
        watch = waiting._watch
        assert watch is not None
        watch.cancel()
        await asyncio.wait([watch])
        await waiting.until("jobs", LONG_SECONDS)
        waiting.close()

    run(scenario)


def test_a_queue_that_hangs_keeps_nobody_from_another() -> None:
    """A look that takes long is left to itself, and nobody looks at that queue a second time."""
    looks: Counter[str] = Counter()

    async def scenario() -> None:
        is_well = asyncio.Event()

        async def look(queue: str) -> int:
            looks[queue] += 1
            if queue.startswith("bad"):
                await is_well.wait()
            return 1

        waiting = Waiting(look)
        names = [f"bad{number}" for number in range(SLOW_MAX - 1)]
        bad = [asyncio.create_task(waiting.until(name, LONG_SECONDS)) for name in names]
        await asyncio.sleep(0)
        for _ in range(5):
            await waiting.until("good", LONG_SECONDS)
        assert looks == {"good": 5, **dict.fromkeys(names, 1)}
        is_well.set()
        await asyncio.gather(*bad)
        waiting.close()

    run(scenario)


def test_no_more_looks_take_long_at_once_than_may() -> None:
    """Each may hold a thread, which others need; and all are looked at once some are over."""
    under_way, most = 0, 0

    async def scenario() -> None:
        is_well = asyncio.Event()

        async def look(queue: str) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await is_well.wait()
            under_way -= 1
            return 1

        waiting = Waiting(look)
        names = [f"jobs{number}" for number in range(3 * SLOW_MAX)]
        polls = [asyncio.create_task(waiting.until(name, LONG_SECONDS)) for name in names]
        while most < SLOW_MAX:
            await asyncio.sleep(0.001)
        await asyncio.sleep(5 * PATIENCE)
        is_well.set()
        await asyncio.gather(*polls)
        waiting.close()

    run(scenario)

    assert most == SLOW_MAX


def test_a_queue_that_hung_is_looked_at_again_after_a_while() -> None:
    """Not at once, for then nothing else would be done; but it is not forgotten."""
    looks = 0

    async def look(queue: str) -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            await asyncio.sleep(3 * PATIENCE)
            return 0
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        await waiting.until("jobs", LONG_SECONDS)
        waiting.close()

    run(scenario)

    assert looks == 2


def test_looks_that_are_done_at_once_take_no_task_each() -> None:
    """Queues are looked at fifty times a second, and a server may have a thousand of them."""
    seen: dict[str, object] = {}

    async def look(queue: str) -> int:
        seen[queue] = asyncio.current_task()
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        await asyncio.gather(*(waiting.until(f"jobs{each}", LONG_SECONDS) for each in range(10)))
        waiting.close()

    run(scenario)

    assert len(seen) == 10
    assert len(set(seen.values())) == 1


def test_who_waited_and_left_is_not_counted() -> None:
    """Also behind one who waits for long."""

    async def look(queue: str) -> int:
        return 0

    async def scenario() -> None:
        waiting = Waiting(look)
        first = asyncio.create_task(waiting.until("jobs", LONG_SECONDS))
        await asyncio.gather(*(waiting.until("jobs", 0.001) for _ in range(10)))
        assert waiting.count == 1
        waiting.wake("jobs")
        await first
        assert waiting.count == 0
        waiting.close()

    run(scenario)


# Queues that are not there yet ---------------------------------------------------------------


def test_a_queue_that_somebody_waits_for_is_not_let_go_of(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may wait for queues before the first push, whatever others ask for meanwhile."""
    monkeypatch.setattr(app, "PHANTOMS_ASKED_MAX", 3)
    monkeypatch.setattr(app, "PHANTOM_SECONDS", 0.0)
    with placed(scratch, sync="always") as place, ThreadPoolExecutor(3) as callers:
        polls = [
            callers.submit(place.ask, "POST", f"/api/v1/queues/tenant{number}/pop", {"wait": 15})
            for number in range(3)
        ]
        until(lambda: place.app.waiting.count == 3)
        others = [place.ask("GET", f"/api/v1/queues/other{number}/count") for number in range(3)]
        for number in range(3):
            assert place.push(f"tenant{number}", f"{number}").status == 200
        answers = [poll.result(PATIENCE_SECONDS) for poll in polls]

    assert [answer.status for answer in answers] == [200] * 3
    assert [b'"%d"' % number in answer.data for number, answer in enumerate(answers)] == [True] * 3
    assert {other.status for other in others} == {429}


# Those who have left -------------------------------------------------------------------------


def leave_waiting_for_a_thread(place: Place, path: str) -> None:
    """Ask for something, and be gone before there is a thread to do it."""
    with place.busy_threads(1):
        gone = place.connected()
        gone.sendall(place.head("POST", path, "Content-Length: 2") + b"{}")
        until(lambda: place.app.threads.pending == 1)
        cut(gone)
        place.ask("GET", "/live")  # The loop has come round since.
    until(lambda: place.app.threads.pending == 0)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/queues/jobs/pop",
        "/api/v1/queues/jobs/lease",
        "/queue/jobs/pop",
        "/queue/jobs/pop?count=1",
        "/queue/jobs/pop?require_ack=true",
        "/v1.0/actors/PushPopActor/jobs/method/Pop",
        "/v1.0/actors/PushPopActor/jobs/method/PopWithAck",
    ],
)
def test_nothing_is_taken_for_who_left_while_waiting_for_a_thread(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The message is for others, and at once."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    with placed(scratch, sync="always") as place:
        place.push("jobs", "{}")
        leave_waiting_for_a_thread(place, path)
        counts = place.count("jobs")

    assert (counts["ready"], counts["leased"]) == (1, 0)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/rings/round/dequeue",
        "/api/v1/rings/round/transactions",
        "/api/v1/locks/door/acquire",
    ],
)
def test_nothing_of_a_ring_and_no_lock_is_taken_for_who_left_while_waiting_for_a_thread(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The next who asks gets it."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    with placed(scratch, sync="always") as place:
        place.store.ring("round", capacity=4).enqueue(b"x")
        leave_waiting_for_a_thread(place, path)
        answer = place.ask("POST", path, {})

    assert answer.status == 200


# More who wait than connections --------------------------------------------------------------


def test_who_waited_for_a_connection_has_waited(scratch: Path) -> None:
    """However many threads wait on one store: each comes back with nothing, and in time."""
    with (
        placed(scratch) as place,
        open_http(f"{place.url}?connections=2&pool_wait=10") as store,
        ThreadPoolExecutor(8) as callers,
    ):
        queue = store.queue("jobs")
        waits = [callers.submit(queue.pop, wait=0.3) for _ in range(8)]
        found = [each.result(PATIENCE_SECONDS) for each in waits]

    assert found == [None] * 8


def test_who_waited_for_a_connection_gets_what_came_meanwhile(scratch: Path) -> None:
    """To have waited is to look at the end, as everybody does."""
    with (
        placed(scratch) as place,
        open_http(f"{place.url}?connections=1&pool_wait=10") as store,
        ThreadPoolExecutor(2) as callers,
    ):
        first = callers.submit(store.queue("empty").pop, wait=2)
        until(lambda: place.app.waiting.count == 1)
        second = callers.submit(store.queue("jobs").pop, wait=0.2)
        place.push("jobs", "late")
        message = second.result(PATIENCE_SECONDS)
        place.push("empty", "done")
        assert first.result(PATIENCE_SECONDS) is not None

    assert message is not None
    assert message.body == b"late"
