"""Every method of a topic, and of what is opened from one, does in asyncio what it does without."""

import asyncio
import io
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from segue import Event, TopicRecord, TopicRules, aio
from segue.aio._threads import Threads
from segue.aio._topics import lending
from segue.errors import (
    GroupBusy,
    InvalidArgument,
    InvalidName,
    PartitionLost,
    ProducerBusy,
    StoreClosed,
)
from segue.stores import topic_contract
from tests.unit.aio_support import opened, waits
from tests.waiting import LIMIT_SECONDS, wait_until_async


def values(records: list[TopicRecord]) -> list[bytes]:
    return [record.value or b"" for record in records]


def numbered(count: int, *, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# Topics ------------------------------------------------------------------------------------


def test_topics_are_appended_to_and_read(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2, rules=TopicRules(keep_seconds=60))
            first = await topic.append(b"a", key="ada", headers={"to": "ada"}, timestamp=5)
            events: list[Event | bytes] = [b"b", Event(value=b"c", partition=first.partition)]
            many = await topic.append_many(each for each in events)
            await topic.flush()

            assert (topic.name, await store.topics()) == ("orders", ["orders"])
            assert (await topic.partitions, (await topic.rules).keep_seconds) == (2, 60)
            found = [record async for record in topic.records()]
            assert (found[0].value, found[0].key, found[0].headers) == (b"a", b"ada", {"to": "ada"})
            assert sorted(values(found)) == [b"a", b"b", b"c"]
            assert many[1].offset > first.offset
            assert values([each async for each in topic.records(max_records=1)]) == [b"a"]
            assert sum((await topic.offsets()).values()) == 3
            info = await topic.info()
            assert (info.count, len(info.partitions)) == (3, 2)
            await topic.configure(TopicRules(keep_seconds=90))
            await topic.grow(3)
            assert (await topic.partitions, (await topic.rules).keep_seconds) == (3, 90)

    asyncio.run(main())


def test_a_topic_is_opened_by_its_first_call_or_by_awaiting_it(scratch: Path) -> None:
    """As queues and rings are: what speaks against it is said there."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            assert await store.topics() == []
            assert await topic is topic
            assert await store.topics() == ["orders"]
            with pytest.raises(InvalidArgument):
                await store.topic("orders", partitions=3)
            with pytest.raises(InvalidName):
                await store.topic("../orders").append(b"a")
            with pytest.raises(InvalidName):
                await topic.group("../workers")

    asyncio.run(main())


def test_topics_are_read_as_tables(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            await topic.append_many([Event(value=b"%d" % n, partition=n % 2) for n in range(6)])
            tables = [table async for table in topic.tables()]

            assert [table["value"].to_pylist() for table in tables] == [
                [b"0", b"2", b"4"],
                [b"1", b"3", b"5"],
            ]
            async with await topic.reader("audit") as reader:
                assert len(await reader.poll_table(4)) == 4
                assert len(await reader.poll_table(timeout=0.01)) == 2
                assert len(await reader.poll_table(timeout=0.01)) == 0
            async with await topic.group("workers").join() as member:
                assert len(await member.poll_table()) == 6

    asyncio.run(main())


def test_segments_are_kept_compacted_and_sent(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            await topic.append_many([Event(value=b"%d" % n, key="k") for n in range(5)])
            await topic.roll()
            assert (await topic.compact()).removed_records == 4
            target = io.BytesIO()
            sent = await topic.send_segment(0, 0, target)
            (scratch / "segment.q").write_bytes(target.getvalue())
            twin = store.topic("copy", partitions=1)
            adopted = await twin.adopt(scratch / "segment.q", partition=0, key="once")
            again = await twin.adopt(scratch / "segment.q", partition=0, key="once")

            assert sent == len(target.getvalue())
            assert (adopted.is_new, again.is_new) == (True, False)
            assert values([each async for each in twin.records()]) == [b"4"]
            assert (await topic.clean(keep_bytes=0)).count == 1
            assert [each async for each in topic.records()] == []

    asyncio.run(main())


# Producers ---------------------------------------------------------------------------------


def test_producers_append_once(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            async with await topic.producer("importer") as producer:
                assert producer.name == "importer"
                assert await producer.append(b"0", sequence=0) is not None
                assert await producer.append(b"0", sequence=0) is None
                assert len(await producer.append_many(each for each in numbered(3, first=1))) == 3
                assert await producer.last_sequence() == 3
                with pytest.raises(ProducerBusy):
                    await topic.producer("importer")
            with pytest.raises(StoreClosed):
                await producer.append(b"4")
            again = await topic.producer("importer")
            assert await again.last_sequence(0) == 3
            await again.close()
            await again.close()

            assert values([each async for each in topic.records()]) == numbered(4)

    asyncio.run(main())


def test_tasks_that_share_a_producer_take_turns(scratch: Path) -> None:
    """It is for one thread at a time: every record gets a number of its own."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=3)
            async with await topic.producer("importer") as producer:
                await asyncio.gather(*[producer.append(body) for body in numbered(50)])

                assert await producer.last_sequence() == 49
            assert sorted(values([each async for each in topic.records()])) == sorted(numbered(50))

    asyncio.run(main())


# Readers -----------------------------------------------------------------------------------


def test_readers_go_on_where_they_committed(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            await topic.append_many(numbered(10))
            async with await topic.reader("audit") as reader:
                assert reader.name == "audit"
                assert values(await reader.poll(3)) == numbered(3)
                assert len(await reader.poll(max_bytes=1)) == 1
                assert await reader.position == {0: 4}
                await reader.commit({0: 2})
            async with await topic.reader("audit") as reader:
                assert values(await reader.poll(1)) == [b"2"]
                await reader.seek({0: 7})
                await reader.commit()
                assert [lag.records for lag in await reader.lag()] == [3]

            assert [lag.committed for lag in (await topic.readers())["audit"]] == [7]
            assert await topic.remove_reader("audit")
            assert await topic.readers() == {}

    asyncio.run(main())


def test_a_loop_over_a_reader_is_always_at_the_next_record(scratch: Path) -> None:
    """However far it looked ahead: what was not yielded is neither committed nor passed over."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            await topic.append_many([Event(value=b"%d" % n, partition=n % 2) for n in range(400)])
            expected = {0: 0, 1: 0}
            found: list[bytes] = []
            async with await topic.reader("audit") as reader:
                async for record in reader:
                    found += values([record])
                    expected[record.partition] = record.offset + 1
                    if len(found) in {1, 2, 9, 150, 151, 399}:
                        assert await reader.position == expected
                        await reader.commit()
                    if len(found) == 200:
                        found += values(await reader.poll(5))
                        expected = dict(await reader.position)
                assert await reader.position == {0: 200, 1: 200}

            assert sorted(found) == sorted(numbered(400))

    asyncio.run(main())


def test_a_loop_over_a_reader_may_be_left_and_go_elsewhere(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            await topic.append_many(numbered(100))
            async with await topic.reader("audit") as reader:
                async for record in reader:
                    if record.offset == 40:
                        break
                assert values(await reader.poll(2)) == [b"41", b"42"]
                found = []
                async for record in reader:
                    found.append(record.offset)
                    if record.offset == 50:
                        await reader.seek({0: 98})
                assert found == [*range(43, 51), 98, 99]
                assert [record async for record in reader] == []
                await topic.append(b"more")
                assert values([record async for record in reader]) == [b"more"]

    asyncio.run(main())


def test_a_poll_ends_as_soon_as_there_is_something_or_in_time(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            async with await topic.reader("audit") as reader:
                assert await reader.poll(timeout=timedelta(milliseconds=10)) == []
                assert await reader.poll(timeout=0.15) == []
                polling = asyncio.create_task(reader.poll(timeout=None))
                await waits(polling)
                await topic.append(b"a", partition=1)
                assert values(await polling) == [b"a"]
                with pytest.raises(InvalidArgument, match="timeout"):
                    await reader.poll(timeout=-1)
                with pytest.raises(InvalidArgument, match="max_records"):
                    await reader.poll(0, timeout=None)

    asyncio.run(main())


def test_a_commit_finds_its_turn_while_another_task_polls(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            await topic.append(b"a")
            async with await topic.reader("audit") as reader:
                await reader.poll()
                polling: asyncio.Task[object] = asyncio.create_task(reader.poll(timeout=None))
                await waits(polling)
                for _ in range(3):
                    await reader.commit()
                assert await reader.position == {0: 1}
                assert [lag.records for lag in await reader.lag()] == [0]
                await reader.close()
                with pytest.raises(StoreClosed):
                    await polling

    asyncio.run(main())


def test_tasks_that_share_a_reader_share_its_records(scratch: Path) -> None:
    """Each goes to one of them."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            found: list[bytes] = []
            async with await topic.reader("audit") as reader:

                async def work() -> None:
                    while len(found) < 100:
                        found.extend(values(await reader.poll(3, timeout=0.5)))

                tasks = [asyncio.create_task(work()) for _ in range(8)]
                for body in numbered(100):
                    await topic.append(body)
                await asyncio.gather(*tasks)

            assert sorted(found) == sorted(numbered(100))

    asyncio.run(main())


# Groups ------------------------------------------------------------------------------------


def test_members_share_the_partitions(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=4)
            await topic.append_many([Event(value=b"%d" % n, partition=n % 4) for n in range(8)])
            group = topic.group("workers")
            async with await group.join(owner="ada") as first:
                assert (first.name, sorted(await first.assignment)) == ("workers", [0, 1, 2, 3])
                await first.poll(4)
                await first.show_up()
                async with await group.join(owner="bob") as second:
                    await first.poll()
                    await second.poll()
                    assert sorted([*await first.assignment, *await second.assignment]) == [
                        *range(4)
                    ]
                    assert len(await second.assignment) == 2
                    info = await group.info()
                    assert sorted(member.owner for member in info.members) == ["ada", "bob"]
                    with pytest.raises(GroupBusy):
                        await group.reset("latest")
                    with pytest.raises(PartitionLost):
                        await first.seek(dict.fromkeys(await second.assignment, 0))
                    await second.seek(dict.fromkeys(await second.assignment, 2))
                    assert set((await second.position).values()) == {2}
                    await second.commit()
                await first.poll()
                assert sorted(await first.assignment) == [0, 1, 2, 3]
            assert (await group.info()).members == []
            await group.reset("latest")
            assert [lag.records for lag in await group.lag()] == [0, 0, 0, 0]
            assert await topic.groups() == ["workers"]
            assert await topic.remove_group("workers")

    asyncio.run(main())


def test_callbacks_of_a_member_may_commit(scratch: Path) -> None:
    """They run in a thread, in the middle of a poll, and may wait for the event loop there."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            await topic.append_many([Event(value=b"%d" % n, partition=n % 2) for n in range(6)])
            loop = asyncio.get_running_loop()
            assigned: list[list[int]] = []
            revoked: list[list[int]] = []

            def commit(partitions: list[int]) -> None:
                revoked.append(partitions)
                asyncio.run_coroutine_threadsafe(first.commit(), loop).result(LIMIT_SECONDS)

            group = topic.group("workers")
            first = await group.join(on_assign=assigned.append, on_revoke=commit)
            await first.poll()
            second = await group.join()
            await first.poll()
            await second.poll()

            assert (assigned[0], len(revoked)) == ([0, 1], 1)
            assert [*await second.assignment] == revoked[0]
            assert [lag.committed for lag in await group.lag()] == [3, 3]
            await second.close()
            await first.poll()
            assert assigned[1:] == revoked
            await first.close()

    asyncio.run(main())


def test_many_members_may_commit_in_callbacks_at_once(scratch: Path) -> None:
    """However many of them wait for a thread: there are others for those who commit."""

    async def main() -> None:
        async with opened(scratch) as store:
            loop = asyncio.get_running_loop()
            members: list[aio.Member] = []

            def commit(number: int, _: list[int]) -> None:
                asyncio.run_coroutine_threadsafe(members[number].commit(), loop).result(
                    LIMIT_SECONDS
                )

            topics = [store.topic(f"orders-{number}", partitions=2) for number in range(24)]
            for number, topic in enumerate(topics):
                await topic.append(b"a")
                group = topic.group("workers")
                members.append(await group.join(on_revoke=partial(commit, number)))
            others = [await topic.group("workers").join() for topic in topics]
            await asyncio.gather(*[member.poll() for member in members])

            assert [len(await member.assignment) for member in members] == [1] * 24
            await asyncio.gather(*[member.close() for member in [*members, *others]])

    asyncio.run(main())


def test_a_callback_is_no_coroutine_function(scratch: Path) -> None:
    """Nobody would await it; so it is refused before anybody joins."""

    async def commit(partitions: list[int]) -> None:
        raise AssertionError(partitions)

    async def main() -> None:
        async with opened(scratch) as store:
            group = store.topic("orders", partitions=1).group("workers")
            with pytest.raises(InvalidArgument):
                await group.join(on_revoke=commit)  # type: ignore[arg-type]
            assert (await group.info()).members == []

    asyncio.run(main())


class CallingMember:
    """A member whose polls call back, and wait there for a commit."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.loop = asyncio.get_running_loop()
        self.threads = Threads()
        self.twin = aio.Member(self.threads, cast("topic_contract.Member", self))
        self._call_back = lending(self._revoke)

    def poll(self, max_records: int, *, max_bytes: int | None, timeout: float) -> list[TopicRecord]:
        self.seen.append("poll")
        assert self._call_back is not None
        self._call_back([0])
        self.seen.append("end of poll")
        return [TopicRecord(0, 0, None, b"", {}, 0)]

    def _revoke(self, _: list[int]) -> None:
        asyncio.run_coroutine_threadsafe(self._commit_late(), self.loop).result(LIMIT_SECONDS)

    async def _commit_late(self) -> None:
        await wait_until_async(self.threads._waits._work_queue.empty)  # Other polls have begun.
        await self.twin.commit()

    def commit(self, offsets: object) -> None:
        self.seen.append("commit")


def test_no_poll_comes_between_while_a_member_calls_back() -> None:
    """Other calls do: commits for what is about to be given up."""

    async def main() -> None:
        member = CallingMember()
        await asyncio.gather(*[member.twin.poll() for _ in range(5)])

        assert member.seen == ["poll", "commit", "end of poll"] * 5
        await member.threads.close(lambda: None)

    asyncio.run(main())
