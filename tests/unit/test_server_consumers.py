"""Topics over HTTP as an operator sees them: who reads, how far behind, what is kept for whom."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import Event, Topic, TopicRules
from segue.delivery.topic_rules import PARTITIONS_DEFAULT
from segue.server import paging
from segue.server.access import AUDIT_TOPIC
from segue.server.routes import consumers as routes
from segue.server.routes.consumers import waits_for
from segue.server.words import lasting, numbered, sized
from segue.stores.file.store import FileStore
from segue.stores.topic_contract import Lag
from segue.stores.topic_looks import AnyTopicLooks, Kept
from tests.unit.server_looks import Json, column, only, redis_placed, rows
from tests.unit.server_support import Place, new_token, placed
from tests.unit.support import destroy_header, flip_bit, segment_path, traces
from tests.waiting import LIMIT_SECONDS

TOPICS = "/api/v1/overview/topics"
SEGMENT_BYTES = 1 << 16
RULES = TopicRules(segment_bytes=SEGMENT_BYTES)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that have all the time there is, on however slow a machine."""
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", LIMIT_SECONDS)


@pytest.fixture(params=["directory", "redis", "contract"])
def place(
    request: pytest.FixtureRequest, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A store behind a server, of each kind; and one known by what every topic promises alone."""
    if request.param == "contract":
        monkeypatch.setattr(
            routes, "looks_of", lambda store, name: AnyTopicLooks(store.topic(name))
        )
    with redis_placed() if request.param == "redis" else placed(scratch) as place:
        yield place


@pytest.fixture
def files(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


def append(topic: Topic, count: int, *, partition: int = 0, size: int = 100) -> None:
    """Append records to one partition, and begin a new segment there."""
    topic.append_many([Event(value=b"x" * size, partition=partition) for _ in range(count)])
    topic.roll(partitions=[partition])


def commit(topic: Topic, reader: str, offsets: dict[int, int]) -> None:
    """Have a reader stand somewhere."""
    with topic.reader(reader) as opened:
        opened.seek(offsets)
        opened.commit()


def path_of(topic: str, what: str) -> str:
    return f"/api/v1/topics/{topic}/{what}"


# All topics --------------------------------------------------------------------------------------


def test_a_row_tells_of_the_reader_or_group_that_is_furthest_behind(place: Place) -> None:
    """By records; a group counts as a reader does."""
    began_us = time.time_ns() // 1000
    topic = place.store.topic("orders", partitions=2, rules=RULES)
    append(topic, 10, partition=0)
    append(topic, 5, partition=1)
    commit(topic, "quick", {0: 10, 1: 4})
    commit(topic, "slow", {0: 3, 1: 5})
    row = only(place.ask("GET", TOPICS), "topics")
    topic.group("workers").join().close()
    later = only(place.ask("GET", TOPICS), "topics")

    assert (row["name"], row["partitions"], row["records"]) == ("orders", 2, 15)
    assert (row["readers"], row["groups"], row["problem"]) == (2, 0, "")
    assert (row["lag_of"], row["lag_kind"], row["lag_records"]) == ("slow", "reader", 7)
    size_bytes, seconds = row["lag_bytes"], row["lag_seconds"]
    assert isinstance(size_bytes, int)
    assert 700 <= size_bytes < 900
    assert isinstance(seconds, float)
    assert 0 <= seconds < 60
    if isinstance(place.store, FileStore):  # The other one goes by a clock that stands still.
        assert seconds > 0
        oldest_us = row["oldest_us"]
        assert isinstance(oldest_us, int)
        assert began_us <= oldest_us <= time.time_ns() // 1000
    assert (later["lag_of"], later["lag_kind"], later["lag_records"]) == ("workers", "group", 15)
    assert (later["readers"], later["groups"]) == (2, 1)


def test_a_row_is_what_the_topic_says_itself(files: Place) -> None:
    """Without the topic being opened for it."""
    topic = files.store.topic("orders", partitions=3, rules=RULES)
    for number in range(7):
        append(topic, 40, partition=number % 2, size=number * 100)
    commit(topic, "slow", {0: 50, 1: 7})
    row = only(files.ask("GET", TOPICS), "topics")
    info, lags = topic.info(), topic.readers()["slow"]

    assert row["records"] == info.count
    assert row["size_bytes"] == info.size_bytes
    assert row["lag_records"] == sum(lag.records for lag in lags)
    assert row["lag_bytes"] == sum(lag.size_bytes for lag in lags)


def test_a_topic_that_nobody_reads_has_nobody_behind(place: Place) -> None:
    """Nor has one that was read to its end, or holds nothing."""
    append(place.store.topic("a-unread"), 3)
    read = place.store.topic("b-read")
    append(read, 3)
    commit(read, "audit", {0: 3})
    place.store.topic("c-empty", partitions=4)
    found = rows(place.ask("GET", TOPICS), "topics")

    assert column(found, "name") == ["a-unread", "b-read", "c-empty"]
    assert column(found, "lag_of") == column(found, "lag_kind") == ["", "", ""]
    assert column(found, "lag_records") == [0, 0, 0]
    assert column(found, "records") == [3, 3, 0]
    assert column(found, "partitions") == [PARTITIONS_DEFAULT, PARTITIONS_DEFAULT, 4]
    assert found[2]["oldest_us"] is None


def test_topics_are_paged_by_name(place: Place) -> None:
    """Each once, in their order, and the last page says that it is the last."""
    names = [f"topic-{number}" for number in range(5)]
    for name in reversed(names):
        place.store.topic(name, partitions=1)
    seen: list[object] = []
    after: object = ""
    pages = 0
    while after is not None:
        told = place.ask("GET", f"{TOPICS}?limit=2&after={after}")
        seen += column(rows(told, "topics"), "name")
        after = told.json["next"]
        pages += 1

    assert seen == names
    assert pages == 3
    assert place.ask("GET", f"{TOPICS}?limit=5").json["next"] is None


def test_a_page_ends_when_it_has_taken_too_long(
    files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one topic at least, so that the next page goes on."""
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", 0.0)
    for name in ("a", "b"):
        files.store.topic(name, partitions=1)
    first = files.ask("GET", TOPICS)
    second = files.ask("GET", f"{TOPICS}?after=a")

    assert (column(rows(first, "topics"), "name"), first.json["next"]) == (["a"], "a")
    assert (column(rows(second, "topics"), "name"), second.json["next"]) == (["b"], None)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "before=a"])
def test_a_page_that_makes_no_sense_is_refused(files: Place, query: str) -> None:
    assert files.ask("GET", f"{TOPICS}?{query}").status == 400


def test_an_empty_store_has_no_topics_and_looking_makes_none(place: Place) -> None:
    assert place.ask("GET", TOPICS).json == {"topics": [], "next": None}
    for what in ("consumers", "retention"):
        told = place.ask("GET", path_of("nothing", what))
        assert (told.status, told.code) == (404, "topic_not_found")
    assert place.store.topics() == []


def test_looking_changes_nothing_on_disk(files: Place, scratch: Path) -> None:
    """Not even a partition that was never appended to gets a directory, nor is any log opened."""
    topic = files.store.topic("orders", partitions=8, rules=RULES)
    append(topic, 10)
    commit(topic, "slow", {0: 3})
    files.store.topic("empty", partitions=3)
    before = traces(scratch)
    for path in (TOPICS, *(path_of("orders", what) for what in ("consumers", "retention"))):
        assert files.ask("GET", path).status == 200

    assert traces(scratch) == before
    assert len(files.store.topic("empty")._core._logs) == 0


def test_tokens_see_the_topics_they_are_for(scratch: Path) -> None:
    """And what was done by others only who may do everything, though the pattern covers it."""
    tokens = scratch / "tokens"
    _, reader = new_token(tokens, "read", names=("orders-*", "segue.*"))
    _, admin = new_token(tokens, "admin")
    with placed(scratch / "store", tokens=tokens) as place:
        for name in ("orders-1", "secrets", AUDIT_TOPIC):
            place.store.topic(name, partitions=1)
        some = rows(place.ask("GET", TOPICS, authorization=reader), "topics")
        every = rows(place.ask("GET", TOPICS, authorization=admin), "topics")
        refused = [
            place.ask("GET", path_of(name, what), authorization=reader).status
            for name in ("secrets", AUDIT_TOPIC)
            for what in ("consumers", "retention", "segments")
        ]

    assert column(some, "name") == ["orders-1"]
    assert column(every, "name") == ["orders-1", "secrets", AUDIT_TOPIC]
    assert refused == [403] * 6


def test_a_damaged_topic_is_told_with_its_problem_and_the_others_go_on(
    files: Place, scratch: Path
) -> None:
    """A manifest or a place that cannot be read hides nothing else."""
    for name in ("a", "b", "c"):
        topic = files.store.topic(name, partitions=1)
        append(topic, 3)
        commit(topic, "audit", {0: 1})
        commit(topic, "slow", {0: 0})
    (scratch / "topics/b/manifest.json").write_text("rotten")
    flip_bit(scratch / "topics/c/partition_0/readers/slow.meta", 9)
    with placed(scratch) as fresh:
        found = rows(fresh.ask("GET", TOPICS), "topics")
        told = fresh.ask("GET", path_of("b", "consumers"))

    assert column(found, "name") == ["a", "b", "c"]
    assert [bool(row["problem"]) for row in found] == [False, True, True]
    assert "manifest.json" in str(found[1]["problem"])
    assert str(scratch) not in str(found[1]["problem"])
    assert "reader slow" in str(found[2]["problem"])
    assert (found[2]["records"], found[2]["lag_of"], found[2]["lag_records"]) == (3, "audit", 2)
    assert (told.status, told.code) == (500, "corrupt_manifest")


# Who reads ---------------------------------------------------------------------------------------


def lag_rows(lags: list[Lag]) -> list[tuple[int, ...]]:
    return [
        (lag.partition, lag.committed, lag.next_offset, lag.size_bytes, lag.trimmed) for lag in lags
    ]


def told_lags(row: Json) -> list[tuple[object, ...]]:
    lags = row["lag"]
    assert isinstance(lags, list)
    fields = ("partition", "committed", "next_offset", "size_bytes", "trimmed")
    return [tuple(lag[field] for field in fields) for lag in lags]


def test_consumers_are_readers_and_groups_with_their_members(place: Place) -> None:
    """Readers first, each with what the topic itself says of its lag."""
    topic = place.store.topic("orders", partitions=2, rules=RULES)
    append(topic, 10, partition=0)
    append(topic, 6, partition=1)
    commit(topic, "audit", {0: 4, 1: 6})
    with topic.group("workers").join(owner="host:1") as member:
        member.poll(3)
        member.commit()
        found = rows(place.ask("GET", path_of("orders", "consumers")), "consumers")
        said = topic.group("workers").info()
        reader, group = found
        members = group["members"]
        assert isinstance(members, list)
        (shown,) = members

    assert [(row["kind"], row["name"]) for row in found] == [
        ("reader", "audit"),
        ("group", "workers"),
    ]
    assert told_lags(reader) == lag_rows(list(topic.readers()["audit"]))
    assert told_lags(group) == lag_rows(list(said.lag))
    assert (reader["records"], reader["trimmed"], reader["generation"]) == (6, 0, None)
    assert reader["members"] == []
    assert (group["records"], group["generation"]) == (13, said.generation)
    assert (shown["owner"], shown["partitions"]) == ("host:1", [0, 1])
    assert reader["size_bytes"] == sum(lag.size_bytes for lag in topic.readers()["audit"])


def test_what_a_consumer_lost_is_told(place: Place) -> None:
    """Records that a limit took before it read them."""
    topic = place.store.topic("orders", partitions=1, rules=RULES)
    for _ in range(3):
        append(topic, 10)
    commit(topic, "slow", {0: 5})
    topic.clean(keep_bytes=0)
    row = only(place.ask("GET", path_of("orders", "consumers")), "consumers")

    assert (row["records"], row["trimmed"]) == (25, 25)


# What is kept ------------------------------------------------------------------------------------


def kept(place: Place, topic: str = "orders") -> tuple[list[Json], str]:
    told = place.ask("GET", path_of(topic, "retention"))
    return rows(told, "partitions"), str(told.json["waits_for"])


def test_retention_tells_what_cleaning_then_deletes(place: Place) -> None:
    """To the byte, partition by partition, and deletes nothing itself."""
    topic = place.store.topic("orders", partitions=2, rules=RULES)
    for _ in range(3):
        append(topic, 10, partition=0)
        append(topic, 10, partition=1)
    commit(topic, "audit", {0: 20, 1: 5})
    commit(topic, "other", {0: 30, 1: 30})
    told, words = kept(place)
    again, _ = kept(place)
    report = topic.clean()

    assert told == again
    assert column(told, "deletable_segments") == [2, 0]
    assert {number: len(ids) for number, ids in report.deleted.items()} == {0: 2}
    assert column(told, "deletable_bytes") == [report.freed_bytes, 0]
    assert column(told, "held_by") == ["reader audit", "reader audit"]
    assert words == "reader audit in partitions 0, 1"
    assert kept(place)[0][0]["first_offset"] == 20


@pytest.mark.parametrize(
    ("rules", "offsets", "words"),
    [
        ({}, None, "nobody reads it: without a limit nothing is deleted"),
        ({"lag_max": 5}, None, "nobody reads it: without a limit nothing is deleted"),
        ({"keep_seconds": 7 * 86_400}, None, "nothing: segments go once older than 7 d"),
        (
            {"keep_seconds": 5_400, "keep_bytes": 3 << 30},
            None,
            "nothing: segments go once older than 90 min or beyond 3 GiB of a partition",
        ),
        ({}, 30, "nothing: everybody has read all but the segments that take records"),
        ({}, 7, "reader audit in partition 0"),
        (
            {"keep_bytes": 1 << 30},
            7,
            "reader audit in partition 0; or until segments are beyond 1 GiB of a partition",
        ),
        ({"lag_max": 0}, 7, "nothing: everybody has read all but the segments that take records"),
    ],
)
def test_what_retention_waits_for_is_said_in_words(
    place: Place, rules: dict[str, float], offsets: int | None, words: str
) -> None:
    """Who reads, or a rule, or nobody."""
    said = TopicRules(segment_bytes=SEGMENT_BYTES, clean_on_roll=False, **rules)  # type: ignore[arg-type]
    topic = place.store.topic("orders", partitions=1, rules=said)
    for _ in range(3):
        append(topic, 10)
    if offsets is not None:
        commit(topic, "audit", {0: offsets})
    found, told = kept(place)
    deletable = len(topic.clean(dry_run=True).deleted.get(0, ()))

    assert told == words
    assert found[0]["deletable_segments"] == deletable


def test_rules_and_partitions_that_hold_nothing_are_told(place: Place) -> None:
    """A partition is there from the first, also if nothing was appended to it."""
    place.store.topic("orders", partitions=2, rules=TopicRules(keep_seconds=60))
    told = place.ask("GET", path_of("orders", "retention"))
    found = rows(told, "partitions")
    rules = told.json["rules"]

    assert column(found, "partition") == [0, 1]
    assert column(found, "oldest_us") == [None, None]
    for name in ("first_offset", "next_offset", "deletable_segments", "deletable_bytes"):
        assert column(found, name) == [0, 0]
    assert column(found, "held_by") == ["", ""]
    assert isinstance(rules, dict)
    assert rules["keep_seconds"] == 60


def test_a_segment_that_cannot_be_read_keeps_what_lies_behind_it(
    files: Place, scratch: Path
) -> None:
    """Nothing is deleted on doubt, whatever the rules say; and who asks why is told."""
    topic = files.store.topic("orders", partitions=1, rules=RULES)
    for _ in range(4):
        append(topic, 10)
    commit(topic, "audit", {0: 40})
    destroy_header(segment_path(scratch / "topics/orders/partition_0", 1))
    found, words = kept(files)

    assert column(found, "deletable_segments") == [1]
    assert words == "segment 1, which cannot be read in partition 0"
    assert topic.clean(dry_run=True).deleted == {0: [0]}


def test_a_place_that_cannot_be_read_keeps_everything(files: Place, scratch: Path) -> None:
    topic = files.store.topic("orders", partitions=1, rules=RULES)
    append(topic, 10)
    commit(topic, "audit", {0: 10})
    flip_bit(scratch / "topics/orders/partition_0/readers/audit.meta", 9)
    found, words = kept(files)

    assert column(found, "deletable_segments") == [0]
    assert words == "reader audit in partition 0"


def test_many_who_hold_something_back_are_not_all_named() -> None:
    """A topic may have hundreds of partitions, each with a reader of its own."""
    held = [_held_by(number, f"reader r{number}") for number in range(7)]

    assert waits_for(TopicRules(), held).endswith("reader r4 in partition 4 and 2 more")
    assert waits_for(TopicRules(), [_held_by(number, "reader r") for number in range(20)]) == (
        "reader r in partitions 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
    )


def _held_by(number: int, who: str) -> Kept:
    return Kept(
        partition=number,
        first_offset=0,
        next_offset=1,
        size_bytes=1,
        oldest_us=0,
        marks=1,
        held_by=who,
        deletable_segments=0,
        deletable_bytes=0,
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lasting(0), "0 s"),
        (lasting(0.5), "0.5 s"),
        (lasting(90), "90 s"),
        (lasting(120), "2 min"),
        (lasting(7_200), "2 h"),
        (lasting(90 * 86_400.0), "90 d"),
        (sized(0), "0 bytes"),
        (sized(1023), "1,023 bytes"),
        (sized(1536), "1.5 KiB"),
        (sized(8 << 20), "8 MiB"),
        (sized(3 << 30), "3 GiB"),
        (numbered("partition", [3]), "partition 3"),
        (numbered("partition", [0, 2]), "partitions 0, 2"),
    ],
)
def test_numbers_are_said_as_people_say_them(said: str, words: str) -> None:
    assert said == words
