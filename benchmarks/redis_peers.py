"""Queues on a server as contestants: Segue, and what redis-py does with bare lists and streams.

Bare ones are ceilings: nothing has a token, an attempt, an expiry or a priority, and nobody gives
back what a dead worker held. Commands are made while preparing; packing them is timed, as is the
client's own work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, cast

import segue
from benchmarks.race import Job
from benchmarks.redis_bench import SEGUE, Valkey
from benchmarks.stores import Payloads, require_all

if TYPE_CHECKING:
    import redis

Step = Literal["enqueue", "consume", "lease and ack"]
Command = tuple[str | bytes | int, ...]
Send = Callable[[Sequence[Command]], list[object]]
"""Sends commands at once and returns all answers."""

FILL_MESSAGES: Final = 1000
LIST: Final = "bench:list"
TAKEN: Final = "bench:taken"
STREAM: Final = "bench:stream"
QUEUE: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a contestant does one step."""

    name: str
    step: Step
    prepare: Callable[[int, int], Job]
    """Gets how many messages a batch has and how many batches; has what is taken put there."""
    renew: Callable[[], object]
    """Empties what it pushes to."""
    in_batches: bool
    is_ceiling: bool = False
    """Whether it is what Segue is measured by: one command for each message and step."""
    how: str = ""


@contextmanager
def ways(server: Valkey, payloads: Payloads) -> Iterator[list[Way]]:
    """Give all there are, on one server; Segue and redis-py with a connection each."""
    client = server.client
    with segue.open(server.url) as store:
        connection = client.connection_pool.get_connection()
        try:
            yield [
                *segue_ways(store.queue(QUEUE), payloads),
                *_single_ways(client, payloads),
                *_pipelined_ways(client, payloads, _pipeline(client), "", is_ceiling=True),
                *_pipelined_ways(client, payloads, _bare(connection), ", bare connection"),
                *_counted_ways(client, payloads),
                *_stream_ways(client, payloads),
            ]
        finally:
            client.connection_pool.release(connection)


# Segue -----------------------------------------------------------------------------------------


def segue_ways(queue: "segue.Queue", payloads: Payloads) -> list[Way]:
    """Return all steps on a queue of Segue."""

    def fill(count: int) -> None:
        for part in _parts(payloads, count):
            queue.push_many(part)

    def push(_: int, count: int) -> Job:
        return _each(queue.push, payloads.take(count))

    def push_many(size: int, count: int) -> Job:
        return _each(queue.push_many, [payloads.take(size)] * count)

    def pop(_: int, count: int) -> Job:
        fill(count)

        def job() -> None:
            for _ in range(count):
                require_all(queue.pop() is not None, 1)

        return job

    def pop_many(size: int, count: int) -> Job:
        fill(size * count)

        def job() -> None:
            for _ in range(count):
                require_all(len(queue.pop_many(size)), size)

        return job

    def lease(_: int, count: int) -> Job:
        fill(count)

        def job() -> None:
            for _ in range(count):
                queue.ack(queue.lease())

        return job

    def lease_many(size: int, count: int) -> Job:
        fill(size * count)

        def job() -> None:
            for _ in range(count):
                jobs = queue.lease_many(size)
                queue.ack_many(jobs)
                require_all(len(jobs), size)

        return job

    way = partial(Way, name=SEGUE, renew=queue.purge)
    return [
        way(step="enqueue", prepare=push, in_batches=False, how="push"),
        way(step="enqueue", prepare=push_many, in_batches=True, how="push_many"),
        way(step="consume", prepare=pop, in_batches=False, how="pop"),
        way(step="consume", prepare=pop_many, in_batches=True, how="pop_many"),
        way(step="lease and ack", prepare=lease, in_batches=False, how="lease, ack"),
        way(step="lease and ack", prepare=lease_many, in_batches=True, how="lease_many, ack_many"),
    ]


# Lists -----------------------------------------------------------------------------------------


def _single_ways(client: "redis.Redis", payloads: Payloads) -> list[Way]:
    """A list, one command at a time, each waiting for its answer."""
    execute = _execute(client)

    def push(_: int, count: int) -> Job:
        return _each(lambda payload: execute("RPUSH", LIST, payload), payloads.take(count))

    def pop(_: int, count: int) -> Job:
        _fill_list(client, payloads, count)

        def job() -> None:
            for _ in range(count):
                require_all(execute("LPOP", LIST) is not None, 1)

        return job

    def move(_: int, count: int) -> Job:
        _fill_list(client, payloads, count)

        def job() -> None:
            for _ in range(count):
                body = execute("LMOVE", LIST, TAKEN, "LEFT", "RIGHT")
                require_all(cast("int", execute("LREM", TAKEN, 1, body)), 1)

        return job

    way = partial(Way, renew=partial(client.delete, LIST, TAKEN), in_batches=False, is_ceiling=True)
    return [
        way(name="RPUSH", step="enqueue", prepare=push),
        way(name="LPOP", step="consume", prepare=pop),
        way(name="LMOVE, LREM", step="lease and ack", prepare=move),
    ]


def _pipelined_ways(
    client: "redis.Redis", payloads: Payloads, send: Send, kind: str, *, is_ceiling: bool = False
) -> list[Way]:
    """A list, a command for each message, as many as a batch has sent at once."""

    def push(size: int, count: int) -> Job:
        rows: list[Command] = [("RPUSH", LIST, payload) for payload in payloads.take(size)]
        return _each(send, [rows] * count)

    def pop(size: int, count: int) -> Job:
        _fill_list(client, payloads, size * count)
        rows: list[Command] = [("LPOP", LIST)] * size

        def job() -> None:
            for _ in range(count):
                require_all(size - send(rows).count(None), size)

        return job

    def move(size: int, count: int) -> Job:
        _fill_list(client, payloads, size * count)
        rows: list[Command] = [("LMOVE", LIST, TAKEN, "LEFT", "RIGHT")] * size

        def job() -> None:
            for _ in range(count):
                bodies = cast("list[bytes]", send(rows))
                removed = send([("LREM", TAKEN, 1, body) for body in bodies])
                require_all(sum(cast("list[int]", removed)), size)

        return job

    way = partial(
        Way, renew=partial(client.delete, LIST, TAKEN), in_batches=True, is_ceiling=is_ceiling
    )
    how = "a command for each message"
    return [
        way(name=f"RPUSH pipelined{kind}", step="enqueue", prepare=push, how=how),
        way(name=f"LPOP pipelined{kind}", step="consume", prepare=pop, how=how),
        way(
            name=f"LMOVE, LREM pipelined{kind}",
            step="lease and ack",
            prepare=move,
            how="two commands for each message, two round trips",
        ),
    ]


def _counted_ways(client: "redis.Redis", payloads: Payloads) -> list[Way]:
    """A list, one command for a whole batch."""
    execute = _execute(client)

    def push(size: int, count: int) -> Job:
        row: Command = ("RPUSH", LIST, *payloads.take(size))
        return _each(lambda row: execute(*row), [row] * count)

    def pop(size: int, count: int) -> Job:
        _fill_list(client, payloads, size * count)

        def job() -> None:
            for _ in range(count):
                require_all(len(cast("list[bytes]", execute("LPOP", LIST, size))), size)

        return job

    way = partial(Way, renew=partial(client.delete, LIST), in_batches=True)
    how = "one command for the batch"
    return [
        way(name="RPUSH variadic", step="enqueue", prepare=push, how=how),
        way(name="LPOP with a count", step="consume", prepare=pop, how=how),
    ]


def _fill_list(client: "redis.Redis", payloads: Payloads, count: int) -> None:
    for part in _parts(payloads, count):
        client.rpush(LIST, *part)


# Streams ---------------------------------------------------------------------------------------


def _stream_ways(client: "redis.Redis", payloads: Payloads) -> list[Way]:
    """A stream and its group; what is acked stays in the stream unless it is deleted, too."""
    execute, send = _execute(client), _pipeline(client)

    def renew() -> None:
        client.delete(STREAM)
        client.xgroup_create(STREAM, STREAM, "0", mkstream=True)

    def rows(count: int) -> list[Command]:
        return [("XADD", STREAM, "*", "body", payload) for payload in payloads.take(count)]

    def push(_: int, count: int) -> Job:
        return _each(lambda row: execute(*row), rows(count))

    def push_many(size: int, count: int) -> Job:
        return _each(send, [rows(size)] * count)

    def read(size: int, count: int, *, deletes: bool) -> Job:
        for first in range(0, size * count, FILL_MESSAGES):
            send(rows(min(FILL_MESSAGES, size * count - first)))
        take = ("XREADGROUP", "GROUP", STREAM, "one", "COUNT", size, "STREAMS", STREAM, ">")

        def job() -> None:
            for _ in range(count):
                ((_, entries),) = _streams(execute(*take))
                numbers = [number for number, _ in entries]
                settle: list[Command] = [("XACK", STREAM, STREAM, *numbers)]
                if deletes:
                    settle.append(("XDEL", STREAM, *numbers))
                require_all(cast("int", send(settle)[0]), size)

        return job

    way = partial(Way, renew=renew)
    found = [
        way(name="XADD", step="enqueue", prepare=push, in_batches=False),
        way(name="XADD pipelined", step="enqueue", prepare=push_many, in_batches=True),
    ]
    for in_batches in (False, True):
        take = partial(way, step="lease and ack", in_batches=in_batches)
        kept, deleted = partial(read, deletes=False), partial(read, deletes=True)
        found += [
            take(name="XREADGROUP, XACK", prepare=kept, how="entries stay in the stream"),
            take(name="XREADGROUP, XACK and XDEL", prepare=deleted, how="entries are deleted"),
        ]
    return found


Streams = list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]


def _streams(answer: object) -> Streams:
    """Return the streams of an answer, whichever protocol it came by."""
    found = answer.items() if isinstance(answer, dict) else answer
    return list(cast("Streams", found))


# Sending ---------------------------------------------------------------------------------------


def _execute(client: "redis.Redis") -> Callable[..., object]:
    """Return the shortest way through redis-py: its methods look through what they are given."""
    return cast("Callable[..., object]", client.execute_command)


def _pipeline(client: "redis.Redis") -> Send:
    def send(commands: Sequence[Command]) -> list[object]:
        with client.pipeline(transaction=False) as pipeline:
            execute = cast("Callable[..., object]", pipeline.execute_command)
            for command in commands:
                execute(*command)
            return cast("list[object]", pipeline.execute())

    return send


def _bare(connection: "redis.Connection") -> Send:
    """Return how to send without what a pipeline of redis-py does for each command."""

    pack = cast("Callable[[Sequence[Command]], list[bytes]]", connection.pack_commands)
    write = cast("Callable[[list[bytes]], None]", connection.send_packed_command)

    def send(commands: Sequence[Command]) -> list[object]:
        write(pack(commands))
        return [connection.read_response() for _ in commands]

    return send


def _parts(payloads: Payloads, count: int) -> Iterator[list[bytes]]:
    for first in range(0, count, FILL_MESSAGES):
        yield payloads.take(min(FILL_MESSAGES, count - first))


def _each(act: Callable[..., object], things: Sequence[object]) -> Job:
    def job() -> None:
        for thing in things:
            act(thing)

    return job
