"""Calls that wait, that take long, and that read on and on: none stands in another's way."""

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from segue import Message, aio
from segue.stores.opening import open_http
from tests.contract.worlds import HttpWorld
from tests.http_proxy import HttpProxy, Impostor, answer_of
from tests.unit.http.support import Opener, count_heard, has_heard, let_pass, using
from tests.waiting import LIMIT_SECONDS, random_pause_async, wait_until, wait_until_async

ABOUT = answer_of(
    200,
    json.dumps(
        {"server": "segue", "version": "0", "api": 1, "store": "directory", "durable": "os"}
    ).encode(),
)


def _prefer(request: bytes) -> float | None:
    """Return how long a request says that it would like to wait."""
    for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"prefer":
            return float(value.removeprefix(b"wait="))
    return None


def test_a_wait_that_is_repeated_is_for_what_is_left_of_it() -> None:
    """Under the same key the body stays as it was: how long is left stands in a header."""
    busy = answer_of(503, json.dumps({"code": "overloaded", "detail": "busy"}).encode())
    nothing = answer_of(200, b'{"messages":[{"id":"0-0","body":"a"}]}')
    with Impostor(ABOUT, busy, busy, nothing) as server, open_http(server.url) as store:
        message = store.queue("jobs").pop(wait=20)
        first, second, third = server.requests[1:]

    assert message is not None
    assert message.body == b"a"
    assert _prefer(first) is None
    assert first.partition(b"\r\n\r\n")[2] == third.partition(b"\r\n\r\n")[2]
    repeated = [_prefer(request) for request in (second, third)]
    assert 20 > (repeated[0] or 0) > (repeated[1] or 0) > 0


def test_what_takes_the_longer_the_more_there_is_has_its_time() -> None:
    """A replay that is given up after ten seconds has happened all the same, and is repeated."""

    def late() -> Iterator[bytes]:
        let_pass(0.5)
        yield answer_of(200, b'{"count": 3}')

    with Impostor(ABOUT, late) as server, open_http(server.url) as store:
        queue = store.queue("jobs")
        with using(store, timeout=0.1, retry=0):
            done = queue.replay(), queue.purge()

    assert done == (3, 3)


def test_dead_letters_that_are_read_leave_a_connection_to_bring_them_back(
    world: HttpWorld, opened: Opener
) -> None:
    """One connection is enough: what is read bit by bit has others."""
    queue = opened(connections=1).queue("jobs")
    queue.push_many([b"x"] * 250)
    for job in queue.lease_many(250):
        job.bury("bad")

    assert queue.redrive().redriven == 250
    assert queue.count().ready == 250


def test_a_lease_is_kept_while_all_sorts_of_things_are_read(
    opened: Opener, proxy: HttpProxy
) -> None:
    """Its renewals find a connection, however many iterators are open."""
    queue = opened(connections=1).queue("jobs")
    queue.push_many([b"x"] * 3)
    for job in queue.lease_many(2):
        job.bury("bad")
    with queue.lease(ttl=1) as job:
        letters = iter(queue.dead_letters())
        next(letters)
        wait_until(lambda: count_heard(proxy, b"/extend") >= 2)
        job.check()

    assert queue.count().leased == 0


@pytest.mark.usefixtures("long_polls")
def test_whoever_waits_takes_no_connection_from_long_work(opened: Opener) -> None:
    """Cleaning is no waiting, though it may take as long."""
    store = opened(connections=1)
    topic = store.topic("orders", partitions=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.queue("jobs").pop, wait=None)
        wait_until(store.calls._waits.in_use)
        report = topic.clean()
        store.queue("jobs").push(b"x")
        message = waiting.result(LIMIT_SECONDS)

    assert report.freed_bytes == 0
    assert message is not None


# Tasks ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("long_polls")
def test_a_task_that_is_cancelled_is_back_long_before_its_wait_is_over(
    disturbed_url: str, proxy: HttpProxy
) -> None:
    """It waits in steps, each of them a short one."""

    async def main() -> None:
        async with await aio.open(disturbed_url) as store:
            waiting = asyncio.create_task(store.queue("jobs").pop(wait=2 * LIMIT_SECONDS))
            await wait_until_async(lambda: count_heard(proxy, b"/pop") >= 2)
            waiting.cancel()
            done, _ = await asyncio.wait([waiting], timeout=LIMIT_SECONDS)
            assert done == {waiting}
            assert waiting.cancelled()

    asyncio.run(main())


def test_a_message_that_comes_as_its_task_is_cancelled_is_not_lost(
    disturbed_url: str, proxy: HttpProxy
) -> None:
    """It is taken or it is there: `pop` hands over what it took, even to who was cancelled."""

    def waits_or_is_done(task: asyncio.Task[Message | None], asked: int) -> bool:
        return task.done() or has_heard(proxy, b"/pop", asked)

    async def main() -> tuple[list[bytes], list[bytes]]:
        chance = random.Random(1)
        found: list[bytes] = []
        async with await aio.open(disturbed_url) as store:
            queue = store.queue("jobs")
            for number in range(40):
                asked = count_heard(proxy, b"/pop") + 2
                waiting = asyncio.create_task(queue.pop(wait=LIMIT_SECONDS))
                # The first request does not wait at the server; the second does. There is only
                # one if a message is left from a task that was cancelled early.
                await wait_until_async(partial(waits_or_is_done, waiting, asked))
                pushing = asyncio.create_task(queue.push(b"%d" % number))
                await random_pause_async(chance, 0.008)
                waiting.cancel()
                await pushing
                try:
                    message = await waiting
                except asyncio.CancelledError:
                    continue
                assert message is not None
                found.append(message.body)
            left = [message.body for message in await queue.pop_many(100)]
        return found, left

    found, left = asyncio.run(main())

    assert sorted(found + left) == sorted(b"%d" % number for number in range(40))
