"""Those who wait for a message: who is woken, for whom nothing is taken, and what they hold."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from segue.log.options import SyncName
from segue.server import open_queues, threads
from segue.server import waiting as waiting_module
from segue.server.access import EVERYTHING, Grant
from segue.server.call import Call, Desk
from segue.server.refusal import Refused
from segue.server.routes import ALL
from segue.server.routing import Route
from segue.server.waiting import SLOW_MAX, Waiting
from segue.stores.opening import open_http
from tests.unit.server_support import Place, Told, cut, placed, until
from tests.waiting import LIMIT_SECONDS, run_other_tasks, wait_until_async

LONG_SECONDS = 10 * LIMIT_SECONDS
"""A wait that no test sits out: each fails at its own limit before."""
POP = next(each for each in ALL if each.path == "/queues/{queue}/pop")
STREAM = replace(POP, method="GET")
"""Who waits in a stream is no different, but that it does so again and again."""


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it, which must not take long."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def waits(waiting: Waiting, queue: str, timeout: float = LONG_SECONDS) -> bool:
    """Wait as somebody does who stays."""
    return await waiting.until(queue, timeout, asyncio.get_running_loop().create_future())


class Asker:
    """Somebody who asks for a message, and may leave. To be made where an event loop runs."""

    def __init__(self, route: Route = POP, *, prefer: bytes | None = None) -> None:
        self.is_let_in = True
        self._left = asyncio.Event()
        desk = cast("Desk", SimpleNamespace(guard=self, is_quick=True))
        headers = {} if prefer is None else {b"prefer": prefer}
        self.call = Call(desk, route, ["jobs"], headers, EVERYTHING, None, None, self._receive)

    def is_good(self, grant: Grant) -> bool:
        """Tell what the guard would."""
        return self.is_let_in

    def leave(self) -> None:
        """Be gone."""
        self._left.set()

    async def _receive(self) -> dict[str, object]:
        await self._left.wait()
        return {"type": "http.disconnect"}


async def no_look(queue: str) -> int:
    """See nothing, ever: who is to look has to be woken."""
    return 0


@pytest.fixture
def no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for longer than any test does, so that one that waits too long fails."""
    monkeypatch.setattr(waiting_module, "WAIT_SECONDS_MAX", LONG_SECONDS)


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
        await waits(waiting, "jobs")  # Told to look for itself.
        await waits(waiting, "jobs")
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
        bad = asyncio.create_task(waits(waiting, "bad"))
        await waits(waiting, "good")
        await bad
        waiting.close()

    run(scenario)


def test_looking_begins_anew_when_it_was_ended() -> None:
    """Who comes to wait needs somebody who looks, whatever became of the last one who did."""

    async def look(queue: str) -> int:
        return 1

    async def scenario() -> None:
        waiting = Waiting(look)
        await waits(waiting, "jobs")
        watch = waiting._watch
        assert watch is not None
        watch.cancel()
        await asyncio.wait([watch])
        await waits(waiting, "jobs")
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
        bad = [asyncio.create_task(waits(waiting, name)) for name in names]
        await run_other_tasks()
        for _ in range(5):
            await waits(waiting, "good")
        assert looks == {"good": 5, **dict.fromkeys(names, 1)}
        is_well.set()
        await asyncio.gather(*bad)
        waiting.close()

    run(scenario)


def test_no_more_looks_take_long_at_once_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may hold a thread, which others need; and all are looked at once some are over."""
    monkeypatch.setattr(waiting_module, "SLOW_SECONDS", LONG_SECONDS)
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
        polls = [asyncio.create_task(waits(waiting, name)) for name in names]
        await wait_until_async(lambda: len(waiting._slow) >= SLOW_MAX)
        await run_other_tasks(20)
        is_well.set()
        await asyncio.gather(*polls)
        waiting.close()

    run(scenario)

    assert most == SLOW_MAX


def test_a_queue_that_hung_is_looked_at_again_after_a_while() -> None:
    """Not at once, for then nothing else would be done; but it is not forgotten."""
    looks = 0

    async def scenario() -> None:
        async def look(queue: str) -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                await wait_until_async(lambda: queue in waiting._slow)
                return 0
            return 1

        waiting = Waiting(look)
        await waits(waiting, "jobs")
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
        await asyncio.gather(*(waits(waiting, f"jobs{each}") for each in range(10)))
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
        first = asyncio.create_task(waits(waiting, "jobs"))
        await asyncio.gather(*(waits(waiting, "jobs", 0.001) for _ in range(10)))
        assert waiting.count == 1
        waiting.wake("jobs")
        await first
        assert waiting.count == 0
        waiting.close()

    run(scenario)


# Queues that are not there yet ---------------------------------------------------------------


def test_a_queue_may_be_waited_for_before_it_is_there(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may come before the first push, whatever others do; nothing is made for them."""
    monkeypatch.setattr(open_queues, "PHANTOMS_MAX", 1)
    refused = {"messages": [{"body": "x", "priority": -1}]}
    with placed(scratch, sync="always") as place, ThreadPoolExecutor(3) as callers:
        polls = [
            callers.submit(place.ask, "POST", f"/api/v1/queues/tenant{number}/pop", {"wait": 30})
            for number in range(3)
        ]
        until(lambda: place.app.waiting.count == 3)
        made = list((scratch / "queues").glob("*"))
        for number in range(3):
            place.ask("POST", f"/api/v1/queues/tenant{number}/messages", refused)
        for number in range(3):
            assert place.push(f"tenant{number}", f"{number}").status == 200
        answers = [poll.result(LIMIT_SECONDS) for poll in polls]

    assert made == []
    assert [answer.status for answer in answers] == [200] * 3
    assert [b'"%d"' % number in answer.data for number, answer in enumerate(answers)] == [True] * 3


# Those who have left -------------------------------------------------------------------------


async def asked(waiting: Waiting, asker: Asker, messages: list[str]) -> list[str]:
    """Return the next message, waiting for it."""

    def take() -> list[str]:
        return [messages.pop()] if messages else []

    return await waiting.deliver(asker.call, take, LONG_SECONDS, lambda found: not found)


def test_a_message_is_for_the_first_who_is_still_there() -> None:
    """However many have left before: each of them used to cost a look."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        messages: list[str] = []
        gone = [Asker() for _ in range(50)]
        polls = [asyncio.create_task(asked(waiting, each, messages)) for each in (*gone, Asker())]
        while waiting.count < len(polls):
            await run_other_tasks()
        for each in gone:
            each.leave()
        while not all(each.call.is_gone() for each in gone):
            await run_other_tasks()
        messages.append("x")
        waiting.wake("jobs")

        assert await polls.pop() == ["x"]
        assert await asyncio.gather(*polls) == [[]] * len(gone)
        assert waiting.count == 0
        waiting.close()

    run(scenario)


def test_who_leaves_has_waited_at_once() -> None:
    """Nobody else needs to come, and no time to pass."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        asker = Asker()
        poll = asyncio.create_task(asked(waiting, asker, []))
        while not waiting.count:
            await run_other_tasks()
        asker.leave()

        assert await poll == []
        assert waiting.count == 0
        waiting.close()

    run(scenario)


def test_what_somebody_was_woken_for_who_is_let_in_no_more_is_for_the_next() -> None:
    """Who was woken is the only one who knows of the message."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        messages: list[str] = []
        first, second = Asker(), Asker()
        polls = [asyncio.create_task(asked(waiting, each, messages)) for each in (first, second)]
        while waiting.count < len(polls):
            await run_other_tasks()
        first.is_let_in = False
        messages.append("x")
        waiting.wake("jobs")

        with pytest.raises(Refused):
            await polls[0]
        assert await polls[1] == ["x"]
        waiting.close()

    run(scenario)


@pytest.mark.usefixtures("no_cap")
@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_who_is_there_gets_a_message_though_many_have_left(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, sync: SyncName, is_cut: bool
) -> None:
    """At once, by the push alone: nobody looks at the queue before its time is over."""
    monkeypatch.setattr(waiting_module, "LOOK_SECONDS", LONG_SECONDS)
    asks = b'{"wait": %d}' % LONG_SECONDS
    length = f"Content-Length: {len(asks)}"
    with placed(scratch, sync=sync) as place, ThreadPoolExecutor(1) as callers:
        place.count("jobs")
        gone = [place.connected() for _ in range(20)]
        for line in gone:
            line.sendall(place.head("POST", "/api/v1/queues/jobs/pop", length) + asks)
        until(lambda: place.app.waiting.count == len(gone))
        for line in gone:
            cut(line) if is_cut else line.close()
        until(lambda: place.app.waiting.count == 0)
        poll = callers.submit(place.ask, "POST", "/api/v1/queues/jobs/pop", asks)
        until(lambda: place.app.waiting.count == 1)
        place.push("jobs", "late")
        answer = poll.result(LIMIT_SECONDS)

    assert b'"late"' in answer.data


def repeated(place: Place, path: str, body: bytes, has_begun: Callable[[], bool]) -> Told:
    """Send a request, cut its connection once it has begun; return the answer to its repeat."""
    line = place.connected()
    headers = ("Idempotency-Key: once", f"Content-Length: {len(body)}")
    line.sendall(place.head("POST", path, *headers) + body)
    until(has_begun)
    cut(line)
    return place.ask("POST", path, body, Idempotency_Key="once")


@pytest.mark.usefixtures("no_cap")
@pytest.mark.parametrize(
    ("path", "status"), [("/queues/jobs/lease", 200), ("/rings/round/dequeue", 423)]
)
def test_a_request_whose_first_try_was_cut_off_need_not_wait_for_its_end(
    scratch: Path, path: str, status: int
) -> None:
    """Nobody listens to the first any more, so it is over."""
    body, path = b'{"wait": %d}' % LONG_SECONDS, f"/api/v1{path}"
    with placed(scratch) as place:
        ring = place.store.ring("round", capacity=4)
        with ring.transaction(ttl=LONG_SECONDS):
            again = repeated(place, path, body, lambda: place.app.requests.count == 1)

    assert again.status == status


@pytest.mark.usefixtures("no_cap")
def test_a_repeated_request_is_handled_if_the_first_try_never_began(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the first try had left before a thread was free for it."""
    run = waiting_module.run
    calls: list[Call] = []

    def is_repeated(call: Call) -> bool:
        """Whether the client has left and the repeated request waits for the first try."""
        return call.is_gone() and any(
            known.is_over is not None for known in place.app.requests._known.values()
        )

    async def run_late(call: Call, step: Callable[[], object], count: int) -> object:
        calls.append(call)
        if len(calls) == 1:
            await wait_until_async(partial(is_repeated, call))
        return await run(call, step, count)

    monkeypatch.setattr(waiting_module, "run", run_late)
    body, path = b'{"wait": 0}', "/api/v1/rings/round/dequeue"
    with placed(scratch) as place:
        ring = place.store.ring("round", capacity=4)
        with ring.transaction(ttl=LONG_SECONDS):
            again = repeated(place, path, body, lambda: len(calls) == 1)

    assert again.status == 423


# How long they would rather wait ---------------------------------------------------------------


@pytest.mark.usefixtures("no_cap")
@pytest.mark.parametrize(
    "prefer",
    [
        *(b"wait=0", b"wait=0.01", b"WAIT = 0.01", b'wait="0.01"', b"wait=0."),
        *(b"respond-async, wait=0.01", b"wait=0.01;x=y, handling=lenient", b"wait=0, wait=99"),
    ],
)
def test_who_prefers_to_wait_for_less_waits_for_less(prefer: bytes) -> None:
    """Who repeats a request has waited, and must not change its body."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        asker = Asker(prefer=prefer)

        assert await asked(waiting, asker, []) == []
        assert await waiting.ask_again(asker.call, list, LONG_SECONDS, lambda _: True) == []
        waiting.close()

    run(scenario)


@pytest.mark.parametrize(
    "prefer",
    [
        *(b"", b"wait", b"wait=", b"wait=-1", b"wait=soon", b"wait=0x0", b"wait=1e-9", b"wait=nan"),
        *(b"await=0", b"respond-async", b"wait=0s", b"wait=\xff", b"x-wait=0", b"wait=0 0"),
    ],
)
def test_a_preference_that_makes_no_sense_is_none(prefer: bytes) -> None:
    """It is only a wish: nothing is refused for it."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        messages: list[str] = []
        poll = asyncio.create_task(asked(waiting, Asker(prefer=prefer), messages))
        while not waiting.count and not poll.done():
            await run_other_tasks()
        messages.append("x")
        waiting.wake("jobs")

        assert await poll == ["x"]
        waiting.close()

    run(scenario)


@pytest.mark.usefixtures("no_cap")
def test_who_prefers_to_wait_for_longer_waits_for_what_was_asked() -> None:
    """The body says for how long at most."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        call = Asker(prefer=b"wait=%d" % LONG_SECONDS).call

        assert await waiting.deliver(call, list, 0.01, lambda _: True) == []
        assert await waiting.ask_again(call, list, 0.01, lambda _: True) == []
        waiting.close()

    run(scenario)


def test_a_stream_waits_for_as_long_as_streams_do() -> None:
    """It waits again and again: with no time in between it would take all there is."""

    async def scenario() -> None:
        waiting = Waiting(no_look)
        call = Asker(STREAM, prefer=b"wait=0").call
        looks = iter([[], [], ["x"]])

        found = await waiting.ask_again(
            call, lambda: next(looks), LONG_SECONDS, lambda found: not found
        )
        assert found == ["x"]
        waiting.close()

    run(scenario)


def test_a_repetition_that_prefers_another_wait_is_the_same_request(scratch: Path) -> None:
    """Else nobody could say it who repeats one: 422."""
    with placed(scratch) as place:
        place.push("jobs", "first")
        place.push("jobs", "second")
        path, body = "/api/v1/queues/jobs/pop", {"wait": 5}
        answers = [
            place.ask("POST", path, body, Idempotency_Key="once", **prefer)
            for prefer in ({}, {"Prefer": "wait=4"}, {"Prefer": "wait=0.250"})
        ]

    assert {answer.status for answer in answers} == {200}
    assert {answer.data for answer in answers} == {answers[0].data}
    assert b'"first"' in answers[0].data


# Those who left before there was a thread ------------------------------------------------------


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
        open_http(f"{place.url}?connections=2&pool_wait={LIMIT_SECONDS:g}") as store,
        ThreadPoolExecutor(8) as callers,
    ):
        queue = store.queue("jobs")
        waits = [callers.submit(queue.pop, wait=0.3) for _ in range(8)]
        found = [each.result(LIMIT_SECONDS) for each in waits]

    assert found == [None] * 8


def test_who_waited_for_a_connection_gets_what_came_meanwhile(scratch: Path) -> None:
    """To have waited is to look at the end, as everybody does."""
    with (
        placed(scratch) as place,
        open_http(f"{place.url}?connections=1&pool_wait={LIMIT_SECONDS:g}") as store,
        ThreadPoolExecutor(2) as callers,
    ):
        first = callers.submit(store.queue("empty").pop, wait=LIMIT_SECONDS)
        until(lambda: place.app.waiting.count == 1)
        second = callers.submit(store.queue("jobs").pop, wait=LIMIT_SECONDS / 6)
        place.push("jobs", "late")
        message = second.result(LIMIT_SECONDS)
        place.push("empty", "done")
        assert first.result(LIMIT_SECONDS) is not None

    assert message is not None
    assert message.body == b"late"
