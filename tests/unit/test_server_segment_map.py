"""Segments over HTTP: which there are, what is the matter with each, and what keeps it."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from segue import Event, Item, QueueRules, TopicRules
from segue.log import Log
from segue.log.layout import _HEADER
from segue.stores.contract import Queue
from segue.stores.file import segment_map, segment_pins
from segue.stores.file.upkeep import TIDY_EVERY_ITEMS
from segue.stores.topic_contract import Topic
from tests.unit.server_looks import Json, column, redis_placed, rows
from tests.unit.server_support import Place, new_token, placed
from tests.unit.support import (
    SECOND_HEADER,
    destroy_header,
    flip_bit,
    segment_path,
    traces,
)

ITEMS = 10
RULES = QueueRules(segment_items=ITEMS)


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


def push(queue: Queue, segments: int, *, priority: int = 0) -> None:
    """Push so many segments full of messages."""
    for _ in range(segments):
        queue.push_many([Item(body=b"message", priority=priority)] * ITEMS)


def append(topic: Topic, segments: int, *, partition: int = 0) -> None:
    """Append ten records, and begin a new segment, so many times."""
    for _ in range(segments):
        topic.append_many([Event(value=b"record", partition=partition)] * ITEMS)
        topic.roll(partitions=[partition])


def logs_of(place: Place, path: str) -> dict[object, Json]:
    """Return the logs that a map tells of, by name."""
    told = place.ask("GET", f"/api/v1/{path}/segments")
    assert told.json["is_known"] is True
    return {log["name"]: log for log in rows(told, "logs")}


def segments_of(log: Json) -> list[Json]:
    found = log["segments"]
    assert isinstance(found, list)
    return found


def pins(log: Json) -> list[object]:
    """Return what keeps each segment, after a look that the answer agrees with itself."""
    found = segments_of(log)
    assert [bool(each["pinned_by"]) for each in found] == column(found, "is_pinned")
    return column(found, "pinned_by")


# Queues ------------------------------------------------------------------------------------------


def test_a_queue_has_its_lanes_what_comes_later_dead_letters_and_a_ledger(place: Place) -> None:
    """Those that there are, each with its segments in order, the last of which takes records."""
    queue = place.store.queue("jobs", RULES)
    push(queue, 2)
    only_ledger = logs_of(place, "queues/jobs")
    push(queue, 1, priority=5)
    queue.push(b"x", delay=60)
    queue.lease().bury("bad")
    found = logs_of(place, "queues/jobs")
    lane = found["lane 0"]
    segments = segments_of(lane)
    log = Log(place.store.place.root / "queues/jobs/lanes/0", read_only=True)
    infos = log.segments()

    assert list(only_ledger) == ["lane 0", "ledger"]
    assert list(found) == ["lane 0", "lane 5", "later", "dead letters", "ledger"]
    assert (lane["first_offset"], lane["next_offset"], lane["more"]) == (0, 2 * ITEMS, 0)
    assert lane["size_bytes"] == log.size_bytes
    assert column(segments, "state") == ["sealed"] * (len(infos) - 1) + ["active"]
    for name, field in [("id", "id"), ("first_offset", "first_offset"), ("count", "count")]:
        assert column(segments, name) == [getattr(info, field) for info in infos]
    assert column(segments, "size_bytes") == [info.size_bytes for info in infos]
    assert column(segments, "created_us") == [info.created_us for info in infos]
    assert column(segments, "last_us") == [
        log.time_of(ITEMS * (number + 1) - 1) for number in range(len(infos))
    ]
    assert pins(lane) == [""] * len(infos)
    log.close()


def test_a_segment_is_pinned_by_a_lease_that_is_stuck(place: Place) -> None:
    """It was delivered whole, and what is behind it waits for it, too."""
    queue = place.store.queue("jobs", RULES)
    push(queue, 7)
    stuck = queue.lease(ttl=600)
    queue.ack_many(queue.lease_many(4 * ITEMS - 1, ttl=600))
    lane = logs_of(place, "queues/jobs")["lane 0"]

    behind = "segment 0, which comes before it"
    assert pins(lane)[:4] == ["1 leased", behind, behind, behind]
    assert pins(lane)[4:6] == ["", ""]  # Not delivered yet: nothing is the matter with them.
    assert column(segments_of(lane)[4:6], "state") == ["sealed", "sealed"]
    stuck.ack()
    queue.push_many([b"x"] * TIDY_EVERY_ITEMS)
    queue.ack_many(queue.lease_many(TIDY_EVERY_ITEMS))
    after = logs_of(place, "queues/jobs")["lane 0"]
    assert "1 leased" not in pins(after)
    assert segments_of(after)[0]["id"] != 0


def test_a_segment_is_pinned_by_messages_that_wait_again(place: Place) -> None:
    """Which were given back, and are to be had now or later."""
    queue = place.store.queue("jobs", RULES)
    push(queue, 3)
    jobs = queue.lease_many(2 * ITEMS, ttl=600)
    jobs[1].fail("bad", delay=600)
    jobs[2].release()
    queue.ack_many(jobs[ITEMS : 2 * ITEMS - 2])
    lane = logs_of(place, "queues/jobs")["lane 0"]

    assert pins(lane)[:2] == ["8 leased and 2 waiting", "2 leased"]


def test_no_more_messages_are_counted_than_there_is_time_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million may be leased: then it is said that there are more."""
    monkeypatch.setattr(segment_pins, "OUTSTANDING_READ_MAX", 12)
    queue = place.store.queue("jobs", RULES)
    push(queue, 4)
    queue.lease_many(3 * ITEMS, ttl=600)
    lane = logs_of(place, "queues/jobs")["lane 0"]
    monkeypatch.setattr(segment_pins, "OUTSTANDING_READ_MAX", ITEMS)
    fewer = logs_of(place, "queues/jobs")["lane 0"]

    assert pins(lane)[:3] == [
        "10 leased",
        "2 leased and some more",
        "segment 1, which comes before it",
    ]
    assert pins(fewer)[1] == "messages that are not settled"


def test_settled_segments_are_pinned_by_the_rule_that_keeps_them(place: Place) -> None:
    """Until they may go, by which time nothing keeps them."""
    rules = QueueRules(segment_items=ITEMS, keep_seconds=3_600)
    queue = place.store.queue("jobs", rules)
    push(queue, 3)
    queue.ack_many(queue.lease_many(2 * ITEMS))
    kept = pins(logs_of(place, "queues/jobs")["lane 0"])
    queue.configure(QueueRules(segment_items=ITEMS, keep_seconds=3_600, keep_bytes=1 << 40))
    both = pins(logs_of(place, "queues/jobs")["lane 0"])
    queue.configure(QueueRules(segment_items=ITEMS, keep_seconds=1e-6))
    over = pins(logs_of(place, "queues/jobs")["lane 0"])

    assert kept[:2] == ["the rule keep_seconds"] * 2
    assert both[:2] == ["the rules keep_seconds and keep_bytes"] * 2
    assert over[:2] == ["", ""]
    assert kept[2] == both[2] == ""


def test_a_queue_that_is_not_there_has_no_segments_and_gets_none(
    place: Place, scratch: Path
) -> None:
    """Nor a topic, nor a ring."""
    place.store.queue("other", RULES).push(b"x")
    before = traces(scratch)
    for path in ("queues/jobs", "topics/orders", "rings/wheel"):
        told = place.ask("GET", f"/api/v1/{path}/segments")
        assert (told.status, told.json) == (200, {"is_known": True, "logs": [], "more_logs": 0})

    assert traces(scratch) == before
    place.store.queue("jobs")  # About to be made: it has a ledger, and is not there yet.
    assert logs_of(place, "queues/jobs") == {}
    assert place.ask("GET", "/api/v1/queues/%2E%2E/segments").code == "invalid_name"


def test_a_queue_that_was_removed_and_made_anew_is_told_as_it_is(place: Place) -> None:
    """Nothing is remembered of the one before."""
    queue = place.store.queue("jobs", RULES)
    push(queue, 5)
    before = logs_of(place, "queues/jobs")["lane 0"]
    place.ask("DELETE", "/api/v1/queues/jobs")
    gone = logs_of(place, "queues/jobs")
    place.store.queue("jobs", RULES).push(b"x")
    after = logs_of(place, "queues/jobs")["lane 0"]

    assert len(segments_of(before)) >= 5
    assert gone == {}
    assert (after["next_offset"], column(segments_of(after), "count")) == (1, [1])


def test_what_cannot_be_read_and_what_was_set_aside_is_told(place: Place, scratch: Path) -> None:
    """First the damage is to be seen, and once it is repaired, what is kept of it."""
    push(place.store.queue("jobs", RULES), 4)
    path = scratch / "queues/jobs/lanes/0"
    destroy_header(segment_path(path, 1))
    damaged = segments_of(logs_of(place, "queues/jobs")["lane 0"])
    flip_bit(segment_path(path, 0), 8192 + 3)
    with Log(path) as log:
        log.repair()
    repaired = segments_of(logs_of(place, "queues/jobs")["lane 0"])

    assert column(damaged[:3], "state") == ["sealed", "unreadable", "sealed"]
    assert [damaged[1][name] for name in ("first_offset", "count", "created_us", "last_us")] == [
        None,
        0,
        None,
        None,
    ]
    assert damaged[1]["size_bytes"] != 0
    aside = [each for each in repaired if each["state"] == "quarantined"]
    assert [(each["id"], each["first_offset"], each["count"]) for each in aside] == [
        (0, 0, ITEMS),
        (1, None, 0),
    ]
    assert all(each["size_bytes"] for each in aside)
    assert column(repaired[:4], "id") == [0, 0, 1, 1]
    assert "unreadable" not in column(repaired, "state")


def test_a_queue_that_cannot_be_opened_is_mapped_all_the_same(scratch: Path) -> None:
    """Somebody wants to know where the trouble is: here a ledger of a later version."""
    with placed(scratch) as place:
        push(place.store.queue("jobs", RULES), 2)
    of_later_version(segment_path(scratch / "queues/jobs/ledger", 0))
    with placed(scratch) as place:
        assert place.ask("GET", "/api/v1/queues/jobs/count").status == 500
        found = logs_of(place, "queues/jobs")

    assert column(segments_of(found["ledger"]), "state") == ["unreadable"]
    assert column(segments_of(found["lane 0"])[:2], "count") == [ITEMS, ITEMS]


def of_later_version(path: Path) -> None:
    """Make a segment one that only a later Segue reads."""
    data = bytearray(path.read_bytes())
    for start in (0, SECOND_HEADER):
        data[start + 8] = 99
        end = start + _HEADER.size
        data[end : end + 4] = crc32(data[start:end]).to_bytes(4, "little")
    path.write_bytes(data)


def test_only_the_newest_segments_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each log, and of all together; how many others there are is said."""
    monkeypatch.setattr(segment_map, "SEGMENTS_SHOWN_MAX", 3)
    queue = place.store.queue("jobs", RULES)
    push(queue, 5)
    push(queue, 5, priority=1)
    every = logs_of(place, "queues/jobs")
    monkeypatch.setattr(segment_map, "SEGMENTS_TOLD_MAX", 4)
    some = logs_of(place, "queues/jobs")
    monkeypatch.setattr(segment_map, "LOGS_SHOWN_MAX", 1)
    told = place.ask("GET", "/api/v1/queues/jobs/segments")

    count = len(segments_of(every["lane 0"]))
    total = every["lane 0"]["more"]
    assert count == 3
    assert isinstance(total, int)
    assert total >= 2
    assert [each["id"] for each in segments_of(every["lane 0"])] == [total, total + 1, total + 2]
    assert [len(segments_of(log)) for log in some.values()] == [3, 1, 0]
    assert some["ledger"]["more"] == 1
    assert column(rows(told, "logs"), "name") == ["lane 0", "ledger"]
    assert told.json["more_logs"] == 1


# Topics ------------------------------------------------------------------------------------------


def test_a_partition_s_segments_are_pinned_by_who_has_not_left_them(place: Place) -> None:
    """The one that stands furthest back is named, of a group as of a reader."""
    topic = place.store.topic("orders", partitions=1)
    append(topic, 4)
    for name, offset in (("slow", 15), ("quick", 25)):
        with topic.reader(name) as reader:
            reader.seek({0: offset})
            reader.commit()
    log = logs_of(place, "topics/orders")["partition 0"]
    topic.group("workers").join(start={0: 12}).close()
    with_group = logs_of(place, "topics/orders")["partition 0"]

    assert column(segments_of(log), "state") == ["sealed"] * 4 + ["active"]
    assert pins(log) == ["", "reader slow", *["reader slow and one more"] * 2, ""]
    assert pins(with_group)[1:3] == ["group workers and one more", "group workers and 2 more"]
    assert [segment["id"] for segment in segments_of(log) if not segment["is_pinned"]] == [
        *topic.clean(dry_run=True).deleted[0],
        4,
    ]


def test_a_partition_that_nobody_reads_is_kept_by_a_rule(place: Place) -> None:
    """Or for want of one; and what a rule lets go nobody keeps, be it that somebody reads it."""
    topic = place.store.topic("orders", partitions=1)
    append(topic, 2)
    unread = pins(logs_of(place, "topics/orders")["partition 0"])
    topic.configure(TopicRules(keep_seconds=3_600, clean_on_roll=False))
    ruled = pins(logs_of(place, "topics/orders")["partition 0"])
    topic.reader("slow").close()
    topic.configure(TopicRules(keep_bytes=0, clean_on_roll=False))
    over = pins(logs_of(place, "topics/orders")["partition 0"])

    assert unread == ["nobody reads it, and no rule lets it go"] * 2 + [""]
    assert ruled == ["the rule keep_seconds"] * 2 + [""]
    assert over == ["", "", ""]


def test_what_lies_behind_a_segment_that_cannot_be_read_is_kept_by_it(
    place: Place, scratch: Path
) -> None:
    """As retention has it: nothing goes on doubt."""
    topic = place.store.topic("orders", partitions=1)
    append(topic, 3)
    with topic.reader("audit") as reader:
        reader.seek("latest")
        reader.commit()
    destroy_header(segment_path(scratch / "topics/orders/partition_0", 1))
    log = logs_of(place, "topics/orders")["partition 0"]

    assert column(segments_of(log), "state") == ["sealed", "unreadable", "sealed", "active"]
    assert pins(log) == ["", "", "segment 1, which cannot be read", ""]


def test_a_topic_without_a_manifest_is_mapped_all_the_same(scratch: Path) -> None:
    """Its partitions are there to be seen."""
    with placed(scratch) as place:
        topic = place.store.topic("orders", partitions=2)
        append(topic, 2)
    (scratch / "topics/orders/manifest.json").write_text("rotten")
    with placed(scratch) as place:
        found = logs_of(place, "topics/orders")

    assert list(found) == ["partition 0"]
    assert found["partition 0"]["next_offset"] == 2 * ITEMS


# Rings -------------------------------------------------------------------------------------------


def test_a_ring_s_segments_are_pinned_by_the_group_that_is_furthest_back(place: Place) -> None:
    """An entry that every group has taken is needed no more, but to restore the ring."""
    ring = place.store.ring("wheel", capacity=30, entries_per_segment=10)
    for number in range(25):
        ring.enqueue(b"%d" % number)
    ring.add_group("slow")
    for _ in range(12):
        ring.dequeue()
    found = logs_of(place, "rings/wheel")
    for _ in range(12):
        ring.dequeue(group="slow")
    after = pins(logs_of(place, "rings/wheel")["entries"])

    assert list(found) == ["entries", "ledger"]
    assert column(segments_of(found["entries"]), "count") == [10, 10, 5]
    assert pins(found["entries"]) == ["group slow", "group slow and one more", ""]
    assert after == ["the next checkpoint", "group default and one more", ""]
    assert pins(found["ledger"]) == [""]


# Who may ask, and where --------------------------------------------------------------------------


def test_where_the_store_is_no_directory_nothing_is_known_of_segments() -> None:
    """And that is said, rather than that there are none."""
    with redis_placed() as place:
        place.store.queue("jobs").push(b"x")
        for path in ("queues/jobs", "topics/orders", "rings/wheel"):
            told = place.ask("GET", f"/api/v1/{path}/segments")
            assert (told.status, told.json) == (
                200,
                {"is_known": False, "logs": [], "more_logs": 0},
            )


def test_a_token_sees_the_segments_of_what_it_is_for(scratch: Path) -> None:
    tokens = scratch / "tokens"
    _, reader = new_token(tokens, "read", names=("jobs-*",))
    with placed(scratch / "store", tokens=tokens) as place:
        place.store.queue("jobs-1", RULES).push(b"x")
        statuses = [
            place.ask("GET", f"/api/v1/{path}/segments", authorization=reader).status
            for path in ("queues/jobs-1", "queues/others", "topics/others", "rings/others")
        ]

    assert statuses == [200, 403, 403, 403]
