from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import segue
from segue import Log
from segue.delivery.topic_record import Event, Origin, pack_record
from segue.errors import LogNotFound
from segue.spark.jobs.audit import Audited, AuditFinding, AuditReport, audit
from tests.integration.cli_support import ask
from tests.unit.support import destroy_header, flip_bit, slot_position, traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(store_path: Path) -> None:
    """Make a topic of two partitions with three segments each, a queue and a ring."""
    with segue.open(store_path, sync="os") as store:
        topic = store.topic("orders", partitions=2)
        for round_ in range(3):
            topic.append_many(
                [
                    Event(value=b"value", key=f"key {number}", timestamp=1_000 * round_ + number)
                    for number in range(10)
                ]
            )
            topic.roll()
        queue = store.queue("mail")
        queue.push_many([b"one", b"two"])
        queue.pop()
        store.ring("bus", capacity=10).enqueue(b"entry")


def partition(store_path: Path, number: int = 0) -> Path:
    return store_path / "topics" / "orders" / f"partition_{number}"


def segments(store_path: Path, number: int = 0) -> list[Path]:
    return sorted(partition(store_path, number).glob("*.q"))


@pytest.mark.long
class TestAnIntactStore:
    def test_everything_is_counted_and_nothing_is_changed(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """An audit is a look: not even a time of a file shows that it was there."""
        fill(store_path)
        before = traces(store_path)
        report = audit(spark, store_path)

        assert traces(store_path) == before
        assert report.is_clean
        assert report.findings == ()
        assert {(each.kind, each.name) for each in report.found} == {
            ("topic", "orders"),
            ("queue", "mail"),
            ("ring", "bus"),
        }
        orders = report.of("topic", "orders")
        assert (orders.logs, orders.records) == (2, 30)
        assert orders.segments >= 6
        assert report.of("queue", "mail").records > 2

    def test_only_what_is_named_is_looked_at(self, spark: "SparkSession", store_path: Path) -> None:
        """Who names a queue wants no topics."""
        fill(store_path)
        report = audit(spark, store_path, queues=["mail"])

        assert [each.name for each in report.found] == ["mail"]

    def test_a_topic_that_nobody_has_used_is_clean(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """There is nothing in it, and nothing wrong with that."""
        with segue.open(store_path, sync="os") as store:
            store.topic("orders", partitions=2)
        report = audit(spark, store_path)

        assert report.is_clean
        assert report.of("topic", "orders").records == 0

    def test_what_is_not_there_is_an_error(self, spark: "SparkSession", store_path: Path) -> None:
        """A misspelt name must not look like a clean topic."""
        with pytest.raises(LogNotFound, match="no store"):
            audit(spark, store_path)
        fill(store_path)
        with pytest.raises(LogNotFound, match="no topic order in"):
            audit(spark, store_path, topics=["order"])


INTACT = Audited(kind="topic", name="orders")


@pytest.mark.parametrize(
    ("found", "is_damage"),
    [
        (replace(INTACT, corrupt=1), True),
        (replace(INTACT, gaps=1), True),
        (replace(INTACT, duplicates=1), True),
        (replace(INTACT, disorder=1), False),
    ],
)
def test_what_is_lost_or_there_twice_is_damage(found: Audited, is_damage: bool) -> None:
    """Times that go backwards are reported, but are no damage."""
    report = AuditReport(found=(INTACT, found), findings=())

    assert report.is_damaged is is_damage
    assert not report.is_clean


class TestDamage:
    def test_a_flipped_bit_is_found_with_its_file_and_offsets(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """One bit costs one batch, and the rest of the topic is still looked at."""
        fill(store_path)
        damaged = segments(store_path)[1]
        flip_bit(damaged, slot_position(0))
        report = audit(spark, store_path)

        orders = report.of("topic", "orders")
        assert report.is_damaged
        assert not report.is_clean
        assert orders.corrupt == 1
        assert orders.records < 30
        (finding,) = report.findings
        assert finding.path == str(damaged)
        assert finding.first_offset is not None
        assert finding.last_offset is not None
        assert finding.last_offset - finding.first_offset + 1 == 30 - orders.records
        assert finding.problem == "checksum does not match"
        assert not report.of("queue", "mail").is_damaged

    @pytest.mark.long
    def test_a_segment_that_is_gone_is_a_gap(self, spark: "SparkSession", store_path: Path) -> None:
        """Offsets that are in no segment are counted."""
        fill(store_path)
        with Log(partition(store_path), read_only=True) as log:
            infos = log.segments()
        infos[1].path.unlink()
        orders = audit(spark, store_path, topics=["orders"]).of("topic", "orders")

        assert infos[2].first_offset is not None
        assert infos[1].first_offset is not None
        assert (orders.gaps, orders.missing) == (1, infos[2].first_offset - infos[1].first_offset)

    @pytest.mark.long
    def test_a_file_without_header_is_found(self, spark: "SparkSession", store_path: Path) -> None:
        """What cannot be read at all is told, too."""
        fill(store_path)
        destroy_header(segments(store_path)[0])
        report = audit(spark, store_path, topics=["orders"])

        assert report.of("topic", "orders").corrupt == 1
        assert report.findings[0].path == str(segments(store_path)[0])

    @pytest.mark.long
    def test_a_topic_without_manifest_is_damaged(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Its segments are checked all the same."""
        fill(store_path)
        manifest = store_path / "topics" / "orders" / "manifest.json"
        manifest.unlink()
        report = audit(spark, store_path, topics=["orders"])

        assert report.of("topic", "orders").records == 30
        assert report.findings == (
            AuditFinding(kind="topic", name="orders", path=str(manifest), problem="it is missing"),
        )


@pytest.mark.long
class TestOrder:
    def test_a_producers_record_that_is_there_twice_is_a_duplicate(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """By its name and count, in whichever partition it is."""
        fill(store_path)
        for number, sequences in ((0, (1, 2)), (1, (2, 3))):
            with Log(partition(store_path, number), sync="os") as log:
                for sequence in sequences:
                    payload, attr = pack_record(b"k", b"v", origin=Origin(7, sequence))
                    log.append(payload, attr=attr)
        report = audit(spark, store_path)

        assert report.of("topic", "orders").duplicates == 1
        assert report.is_damaged

    def test_a_key_whose_times_go_backwards_is_disorder_and_no_damage(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Events may come late: it is told, and nothing is broken."""
        with segue.open(store_path, sync="os") as store:
            topic = store.topic("orders", partitions=2)
            for timestamp in (10, 30, 20, 40, 5):
                topic.append(b"value", key="a", timestamp=timestamp)
                topic.append(b"value", key=f"other {timestamp}", timestamp=100 - timestamp)
        report = audit(spark, store_path)

        assert report.of("topic", "orders").disorder == 2
        assert not report.is_damaged
        assert not report.is_clean


@pytest.mark.long
class TestCommand:
    def test_the_exit_code_says_whether_anything_is_damaged(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """0 and then 1, with a line for what is damaged."""
        fill(store_path)
        intact = ask("spark", "audit", store_path, "--json")
        flip_bit(segments(store_path)[0], slot_position(0))
        damaged = ask("spark", "audit", store_path, "--topic", "orders")

        assert intact.code == 0
        assert [row["state"] for row in intact.json_rows["found"]] == ["intact"] * 3
        assert damaged.code == 1
        assert damaged.fields[0][:4] == ["found", "topic", "orders", "damaged"]
        assert damaged.fields[1][:4] == [
            "damage",
            "topic",
            "orders",
            str(segments(store_path)[0]),
        ]
