"""Streams of servers as contestants: Valkey and NATS JetStream, over a socket of the loopback.

`durable` is each one's own way to be safe from a power cut: Valkey syncs each turn of its loop (a
pipeline shares one), JetStream each message. Rows and subjects are made while preparing; a
client's own work is timed, as its users cannot do without it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from benchmarks.race import Job
from benchmarks.servers import LOOPBACK, start_nats, start_valkey
from benchmarks.stores import BATCH_RECORDS, require_all
from benchmarks.topic_stores import TOPIC, Way, keyed

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig

    Subscription = JetStreamContext.PullSubscription | JetStreamContext.PushSubscription

ANSWER_SECONDS_MAX: Final = 10.0
JOB_SECONDS_MAX: Final = 300.0
UNACKED_MAX: Final = 4 * BATCH_RECORDS
"""How far JetStream pushes ahead of the acks: their answers wait behind what was pushed."""

ResultT = TypeVar("ResultT")
Entries = list[tuple[bytes, dict[bytes, bytes]]]
"""What redis-py gives of a stream: numbers and fields."""
Execute = Callable[..., object]


class ValkeyStream:
    """A stream of Valkey, through redis-py with the parser in C.

    XADD by `execute_command`: faster than `xadd`, which looks through what it is given.
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        import redis

        with ExitStack() as stack:
            server = start_valkey(path, durable=durable)
            stack.callback(server.stop)
            self._client = redis.Redis(host=LOOPBACK, port=server.port)
            stack.callback(self._client.close)
            self._client.ping()
            self._closing = stack.pop_all()

    def produce(self, values: Sequence[bytes]) -> Job:
        rows = self._rows(values)
        execute = cast("Execute", self._client.execute_command)

        def job() -> None:
            for row in rows:
                execute(*row)

        return job

    def produce_batches(self, batch: list[bytes], count: int) -> Job:
        rows = self._rows(batch)

        def job() -> None:
            for _ in range(count):
                with self._client.pipeline(transaction=False) as pipeline:
                    execute = cast("Execute", pipeline.execute_command)
                    for row in rows:
                        execute(*row)
                    pipeline.execute()

        return job

    def _rows(self, values: Sequence[bytes]) -> list[tuple[str | bytes, ...]]:
        return [("XADD", TOPIC, "*", b"key", key, b"value", value) for key, value in keyed(values)]

    def plain(self) -> list[Way]:
        return [Way(name="XREAD", prepare=partial(self._reads, _nothing))]

    def arrow(self) -> list[Way]:
        def table(entries: Entries) -> None:
            _table((fields[b"key"], fields[b"value"]) for _, fields in entries)

        return [Way(name="XREAD, pyarrow.table", prepare=partial(self._reads, table))]

    def _reads(self, use: Callable[[Entries], None], count: int) -> Job:
        xread = self._client.xread

        def job() -> None:
            last = b"0"
            for _ in range(count):
                entries = _entries(xread({TOPIC: last}, count=BATCH_RECORDS))
                last = entries[-1][0]
                use(entries)

        return job

    def saving(self) -> list[Way]:
        self._client.xgroup_create(TOPIC, TOPIC, "0")
        return [Way(name="XREADGROUP, XACK", prepare=self._group_reads)]

    def _group_reads(self, count: int) -> Job:
        client = self._client
        client.xgroup_setid(TOPIC, TOPIC, "0")

        def job() -> None:
            for _ in range(count):
                found = client.xreadgroup(TOPIC, "one", {TOPIC: ">"}, count=BATCH_RECORDS)
                numbers = [number for number, _ in _entries(found)]
                require_all(client.xack(TOPIC, TOPIC, *numbers), BATCH_RECORDS)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.produce_batches(batch, count // len(batch))()

    def close(self) -> None:
        self._closing.close()


def _entries(found: object) -> Entries:
    """Return a thousand entries of the one stream that was read."""
    ((_, entries),) = cast("list[tuple[bytes, Entries]]", found)
    require_all(len(entries), BATCH_RECORDS)
    return entries


class JetStream:
    """A stream of NATS JetStream in files, through nats-py; the key is part of the subject."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        import nats  # noqa: F401 - absent before a server is started for nothing

        with ExitStack() as stack:
            server = start_nats(path, durable=durable)
            stack.callback(server.stop)
            self._runner = stack.enter_context(asyncio.Runner())
            self._errors: list[Exception] = []
            client = self._run(self._connect(server.port))
            stack.callback(lambda: self._run(client.close()))
            self._stream = client.jetstream(timeout=ANSWER_SECONDS_MAX)
            self._run(self._stream.add_stream(name=TOPIC, subjects=[f"{TOPIC}.>"]))
            self._subscription: Subscription | None = None
            self._closing = stack.pop_all()

    async def _connect(self, port: int) -> "Client":
        import nats

        async def failed(error: Exception) -> None:
            self._errors.append(error)

        return await nats.connect(
            f"nats://{LOOPBACK}:{port}", allow_reconnect=False, error_cb=failed
        )

    def _run(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Return what `work` does; raise also what the client only tells its callback."""
        result = self._runner.run(_in_time(work))
        if self._errors:
            raise self._errors.pop()
        return result

    def produce(self, values: Sequence[bytes]) -> Job:
        messages, publish = self._messages(values), self._stream.publish

        async def act() -> None:
            for subject, value in messages:
                await publish(subject, value)

        return lambda: self._run(act())

    def produce_batches(self, batch: list[bytes], count: int) -> Job:
        messages, publish = self._messages(batch), self._stream.publish_async

        async def act() -> None:
            for _ in range(count):
                answers = [await publish(subject, value) for subject, value in messages]
                await asyncio.gather(*answers)

        return lambda: self._run(act())

    def _messages(self, values: Sequence[bytes]) -> list[tuple[str, bytes]]:
        return [(f"{TOPIC}.{key.decode()}", value) for key, value in keyed(values)]

    def plain(self) -> list[Way]:
        return [
            Way(name="fetch", prepare=partial(self._fetches, _nothing, acks=False)),
            Way(name="push", prepare=partial(self._pushes, acks=False), whole=True),
        ]

    def saving(self) -> list[Way]:
        return [
            Way(name="fetch, ack", prepare=partial(self._fetches, _nothing, acks=True)),
            Way(name="push, ack", prepare=partial(self._pushes, acks=True), whole=True),
        ]

    def arrow(self) -> list[Way]:
        def table(messages: "list[Msg]") -> None:
            _table((message.subject.encode(), message.data) for message in messages)

        return [
            Way(
                name="fetch, pyarrow.table",
                prepare=partial(self._fetches, table, acks=False),
            )
        ]

    def _fetches(self, use: "Callable[[list[Msg]], None]", count: int, *, acks: bool) -> Job:
        self._run(self._let_go())
        subscription = self._subscription = self._run(
            self._stream.pull_subscribe(f"{TOPIC}.>", stream=TOPIC, config=_consumer(acks=acks))
        )

        async def act() -> None:
            for _ in range(count):
                messages = await subscription.fetch(BATCH_RECORDS, timeout=ANSWER_SECONDS_MAX)
                require_all(len(messages), BATCH_RECORDS)
                if acks:
                    await messages[-1].ack_sync(timeout=ANSWER_SECONDS_MAX)
                use(messages)

        return lambda: self._run(act())

    def _pushes(self, count: int, *, acks: bool) -> Job:
        self._run(self._let_go())

        async def act() -> None:
            # Messages come from the moment there is a consumer: making it is part of the work.
            seen, done = 0, asyncio.Event()

            async def take(message: "Msg") -> None:
                nonlocal seen
                seen += 1
                if seen % BATCH_RECORDS == 0:
                    if acks:
                        await message.ack_sync(timeout=ANSWER_SECONDS_MAX)
                    if seen == count * BATCH_RECORDS:
                        done.set()

            self._subscription = await self._stream.subscribe(
                f"{TOPIC}.>", stream=TOPIC, cb=take, manual_ack=True, config=_consumer(acks=acks)
            )
            await done.wait()

        return lambda: self._run(act())

    async def _let_go(self) -> None:
        """Remove the consumer of the job before."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            name = (await subscription.consumer_info()).name
            await subscription.unsubscribe()
            await self._stream.delete_consumer(TOPIC, name)

    def preload(self, batch: list[bytes], count: int) -> None:
        self.produce_batches(batch, count // len(batch))()

    def close(self) -> None:
        self._closing.close()


def _consumer(*, acks: bool) -> "ConsumerConfig":
    """Return a consumer that reads from the first message on. An ack goes for all before it."""
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    return ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.ALL if acks else AckPolicy.NONE,
        max_ack_pending=UNACKED_MAX if acks else None,
    )


async def _in_time(work: Coroutine[object, object, ResultT]) -> ResultT:
    async with asyncio.timeout(JOB_SECONDS_MAX):
        return await work


def _table(pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Make what users of a client without Arrow would make for themselves."""
    import pyarrow as pa

    keys, values = zip(*pairs, strict=True)
    pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _nothing(_: object) -> None:
    """Stand for what the user would do."""
