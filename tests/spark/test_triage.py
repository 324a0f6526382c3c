from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import segue
from segue.delivery import reasons
from segue.errors import InvalidArgument, LogNotFound
from segue.spark.jobs.triage import (
    dead_letter_groups,
    dead_letters,
    discard,
    pattern_of,
    redrive,
)
from tests.integration.cli_support import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMED_OUT = "no answer from host{0}.example within 30.{0} s"
NO_FILE = "cannot open '/data/{0}/a.csv'"


def bury(store_path: Path) -> None:
    """Make a queue in which three letters died of one thing and two of another."""
    with segue.open(store_path, sync="os") as store:
        queue = store.queue("mail", segue.QueueRules(max_deliveries=1))
        for number in range(3):
            queue.push(b"slow %d" % number, priority=number)
            queue.lease().fail(TIMED_OUT.format(number))
        for number in range(2):
            queue.push(b"gone %d" % number)
            queue.lease().fail(NO_FILE.format(number))


def bodies(store_path: Path) -> tuple[list[bytes], list[bytes]]:
    """Return what waits and what is dead."""
    with segue.open(store_path, sync="os") as store:
        queue = store.queue("mail")
        return (
            sorted(message.body for message in queue.peek(100)),
            sorted(letter.message.body for letter in queue.dead_letters()),
        )


class TestPatterns:
    def test_a_reason_has_the_pattern_it_has_on_the_dashboard(self, spark: "SparkSession") -> None:
        """Whoever has seen one there finds it here, and the other way round."""
        expected = {
            "order 17 of 1,250.50 failed": "order # of # failed",
            "no user 9f1c2e3d-1111-2222-3333-444455556666": "no user #",
            "cannot parse \"a 'b' 3\"": 'cannot parse "…"',
            "no file /var/data/x-1.csv": "no file …",
            "a \t b\nand a traceback": "a b",
            "": "",
        }
        frame = spark.createDataFrame([(text,) for text in expected], "reason STRING")
        found = frame.select("reason", pattern_of(frame["reason"])).collect()

        assert {row[0]: row[1] for row in found} == expected
        assert {text: reasons.pattern_of(text) for text in expected} == expected


class TestGroups:
    def test_letters_that_died_of_the_same_are_one_group(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """The largest comes first, with the letter that died last as its example."""
        bury(store_path)
        slow, gone = dead_letter_groups(spark, store_path, "mail").collect()

        assert (slow["cause"], slow["count"]) == ("failed", 3)
        assert slow["pattern"] == "no answer from host#.example within # s"
        assert slow["example_id"] == "2-0"
        assert slow["example_reason"] == TIMED_OUT.format(2)
        assert bytes(slow["example_value"]) == b"slow 2"
        assert slow["first_died"] < slow["last_died"]
        assert (gone["pattern"], gone["count"]) == ("cannot open '…'", 2)

    def test_a_group_has_the_same_name_tomorrow(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Whoever looks and then acts means what was seen, whatever died in between."""
        bury(store_path)
        before = {row["group"] for row in dead_letter_groups(spark, store_path, "mail").collect()}
        with segue.open(store_path, sync="os") as store:
            for number in range(9):
                store.queue("mail").push(b"new")
                store.queue("mail").lease().fail(NO_FILE.format(number))
        after = [row["group"] for row in dead_letter_groups(spark, store_path, "mail").collect()]

        assert set(after) == before

    def test_a_queue_without_dead_letters_has_no_groups(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """That is the usual case and no error; a queue that is not there is one."""
        with segue.open(store_path, sync="os") as store:
            store.queue("mail").push(b"alive")

        assert dead_letter_groups(spark, store_path, "mail").collect() == []
        with pytest.raises(LogNotFound, match="no queue post"):
            redrive(spark, store_path, "post", dead_letters(spark, store_path, "mail"))


class TestRedrive:
    def test_exactly_the_chosen_letters_come_back(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Those of the group, and no other."""
        bury(store_path)
        letters = dead_letters(spark, store_path, "mail")
        chosen = letters.where(letters["pattern"].startswith("no answer"))
        tried = redrive(spark, store_path, "mail", chosen, dry_run=True)
        done = redrive(spark, store_path, "mail", chosen, rate=1000)
        again = redrive(spark, store_path, "mail", chosen)

        assert (tried.matched, tried.redriven) == (3, 0)
        assert (done.matched, done.redriven) == (3, 3)
        assert again.matched == 0
        assert bodies(store_path) == ([b"slow 0", b"slow 1", b"slow 2"], [b"gone 0", b"gone 1"])

    def test_letters_can_be_chosen_by_their_place_or_by_a_condition(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """A table from elsewhere needs only one of the two columns."""
        bury(store_path)
        places = spark.createDataFrame([(4,), (99,)], "offset BIGINT")
        by_place = redrive(spark, store_path, "mail", places)
        by_condition = redrive(spark, store_path, "mail", "priority = 1 AND cause = 'failed'")

        assert (by_place.redriven, by_condition.redriven) == (1, 1)
        assert bodies(store_path)[0] == [b"gone 1", b"slow 1"]

    def test_letters_without_a_name_are_refused(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Nothing is guessed where messages are moved."""
        bury(store_path)
        with pytest.raises(InvalidArgument, match="message_id, or offset"):
            redrive(spark, store_path, "mail", spark.range(1))

    def test_exactly_the_chosen_letters_are_dropped(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """The others stay dead letters."""
        bury(store_path)
        tried = discard(spark, store_path, "mail", "pattern LIKE 'cannot%'", dry_run=True)
        dropped = discard(spark, store_path, "mail", "pattern LIKE 'cannot%'")

        assert (tried, dropped) == (2, 2)
        assert bodies(store_path) == ([], [b"slow 0", b"slow 1", b"slow 2"])


class TestCommand:
    def test_it_shows_groups_and_acts_on_the_one_that_is_named(
        self, spark: "SparkSession", store_path: Path
    ) -> None:
        """Look, try, do: and what was not named is still there."""
        bury(store_path)
        shown = ask("spark", "triage", store_path, "mail", "--json").json_rows["groups"]
        group = str(shown[0]["group"])
        tried = ask("spark", "triage", store_path, "mail", group, "--redrive", "--dry-run")
        done = ask("spark", "triage", store_path, "mail", group, "--redrive", "--json")
        refused = ask("spark", "triage", store_path, "mail", "--where", "true", "--discard")
        dropped = ask("spark", "triage", store_path, "mail", "--where", "true", "--discard", "-y")

        assert [(row["count"], row["example_value"]) for row in shown] == [
            (3, "slow 2"),
            (2, "gone 1"),
        ]
        assert tried.fields == [["matched", "3"], ["redriven", "0"]]
        assert done.json == {"matched": 3, "redriven": 3}
        assert refused.code == 2
        assert dropped.fields == [["matched", "2"], ["discarded", "2"]]
        assert bodies(store_path)[1] == []

    def test_what_is_meant_must_be_said(self, spark: "SparkSession", store_path: Path) -> None:
        """An act without a choice, two acts, and a group that is not there are refused."""
        bury(store_path)

        assert ask("spark", "triage", store_path, "mail", "--redrive").code == 2
        assert ask("spark", "triage", store_path, "mail", "g", "--redrive", "--discard").code == 2
        assert ask("spark", "triage", store_path, "mail", "0badf00d", "--redrive").code == 3
