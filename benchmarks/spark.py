"""Spark over a topic: reading, parsing, writing and streaming, beside Parquet and bare sources.

All in one session at local[2], so that every contestant meets the same JVM and the same minute. A
round is one query over all records.
"""

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.race import Contestant, Figure, Job, race_stretches
from benchmarks.report import Section, Target
from benchmarks.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
TOPIC: Final = "events"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
TASKS: Final = 16
DISK_BYTES_PER_RECORD: Final = 700
"""What all copies of a record take up together: in the topic, in Parquet, and written anew."""
SMALL_BATCHES: Final = 40
FIELDS: Final = "value STRUCT<id: BIGINT, amount: DOUBLE>"

OURS: Final = "Segue"
OURS_ALL: Final = "Segue, all columns"
OURS_OFFSETS: Final = "Segue, offsets alone"
PARQUET: Final = "Parquet, uncompressed"
CEILING: Final = "constant Arrow batches (the API's ceiling)"
TUPLES: Final = "the same records as Python tuples"
IN_SOURCE: Final = "Segue, valueFormat json"
FROM_JSON: Final = "Segue and from_json"
PARQUET_FROM_JSON: Final = "Parquet and from_json"


def run(session: Session) -> None:
    """Measure reading, JSON, writing and streaming."""
    effort = session.effort
    shortage = session.shortage(effort.spark_records * DISK_BYTES_PER_RECORD)
    if shortage is not None:
        print(f"\n== spark: not run: {shortage}")
        return
    # Python workers import the peers by their name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    with session.place() as place:
        spark = _session(place)
        try:
            bench = _Bench(session, spark, place)
            bench.fill()
            session.report.add(bench.reading())
            session.report.add(bench.counting())
            session.report.add(bench.parsing())
            session.report.add(bench.writing())
            session.report.add(bench.streaming())
            session.report.add(bench.small_batches())
        finally:
            spark.stop()


def _session(place: Path) -> "SparkSession":
    from benchmarks.spark_peers import ConstantSource, TupleSource
    from segue.spark import session as spark_session

    spark = spark_session(
        "segue-benchmarks",
        MASTER,
        memory="4g",
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ConstantSource)
    spark.dataSource.register(TupleSource)
    return spark


class _Bench:
    """The measurements over one topic and one copy of it in Parquet."""

    def __init__(self, session: Session, spark: "SparkSession", place: Path) -> None:
        self._session = session
        self._spark = spark
        self._place = place
        self._records = session.effort.spark_records
        self._rounds = session.effort.spark_rounds
        self._store = str(place / "store")
        self._parquet = str(place / "parquet")

    def fill(self) -> None:
        """Write the topic and its copy: JSON of about a hundred bytes, without keys."""
        import segue

        with segue.open(self._store, sync="os") as store:
            store.topic(TOPIC, partitions=PARTITIONS)
        rows = self._spark.range(0, self._records, 1, TASKS).selectExpr(
            "concat('{\"id\":', lpad(id, 9, '1'), ',\"amount\":', "
            "(id % 100000) / 100, ',\"name\":\"', rpad(md5(cast(id as string)), 50, 'x'), '\"}')"
            " AS value"
        )
        rows = rows.selectExpr(f"cast(rpad(value, {VALUE_BYTES}, ' ') as binary) AS value")
        rows.write.option("compression", "none").mode("overwrite").parquet(self._parquet)
        self._write_topic(self._spark.read.parquet(self._parquet), self._store)

    def _write_topic(self, rows: "DataFrame", store: str) -> None:
        rows.write.format("segue").mode("append").options(url=store, topic=TOPIC, sync="os").save()

    # Contestants ---------------------------------------------------------------------------

    def _ours(self, schema: str | None = "value BINARY", **options: str) -> "DataFrame":
        reader = self._spark.read.format("segue").options(url=self._store, topic=TOPIC, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _copy(self) -> "DataFrame":
        return self._spark.read.parquet(self._parquet)

    def _constant(self) -> "DataFrame":
        return (
            self._spark.read.format("constant_arrow")
            .options(rows=str(self._records), tasks=str(TASKS), bytes=str(VALUE_BYTES))
            .load()
        )

    def _tuples(self) -> "DataFrame":
        paths = [f"{self._store}/topics/{TOPIC}/partition_{number}" for number in range(PARTITIONS)]
        return (
            self._spark.read.format("python_tuples")
            .options(paths=":".join(paths), tasks=str(TASKS))
            .load()
        )

    def _race(
        self,
        title: str,
        setting: str,
        jobs: dict[str, Callable[[], object]],
        baselines: list[str],
        records: int | None = None,
    ) -> Section:
        minute = self._session.minute()
        contestants = [
            Contestant(
                name=name,
                prepare=partial(_once, job),
                records_per_operation=self._records if records is None else records,
            )
            for name, job in jobs.items()
        ]
        figures = race_stretches(contestants, count=1, rounds=self._rounds, turns=1)
        return Section(
            benchmark="spark",
            title=title,
            setting=f"{setting}, {MASTER}, {self._rounds} rounds",
            minute=minute,
            figures=figures,
            baselines=baselines,
        )

    # Sections ------------------------------------------------------------------------------

    def reading(self) -> Section:
        """Read every value."""
        total = self._records * VALUE_BYTES

        def summed(make: Callable[[], "DataFrame"]) -> None:
            found = make().selectExpr("sum(length(value)) AS total").first()
            assert found is not None
            assert found["total"] == total, found

        section = self._race(
            f"sum of the lengths of {self._records:,} values of {VALUE_BYTES} bytes",
            "from the page cache, checksums looked at",
            {
                OURS: partial(summed, self._ours),
                OURS_ALL: partial(summed, partial(self._ours, None)),
                PARQUET: partial(summed, self._copy),
                CEILING: partial(summed, self._constant),
                TUPLES: partial(summed, self._tuples),
            },
            [CEILING, PARQUET, TUPLES],
        )
        return section.aiming_at(
            [
                _target(section, OURS, CEILING, 0.85),
                _target(section, OURS, PARQUET, 0.4),
                _target(section, OURS, TUPLES, 5),
            ]
        )

    def counting(self) -> Section:
        """Count the records."""

        def counted(make: Callable[[], "DataFrame"]) -> None:
            assert make().count() == self._records

        return self._race(
            f"count {self._records:,} records",
            "no filter, no statistics used by Segue",
            {
                OURS_OFFSETS: partial(counted, partial(self._ours, "offset BIGINT")),
                OURS: partial(counted, self._ours),
                CEILING: partial(counted, self._constant),
                PARQUET: partial(counted, self._copy),
            },
            [CEILING],
        )

    def parsing(self) -> Section:
        """Parse two fields of every value."""

        def summed(values: "DataFrame") -> None:
            found = values.selectExpr("sum(value.id) AS id", "sum(value.amount) AS amount").first()
            assert found is not None
            assert found["id"] is not None

        def parsed(make: Callable[[], "DataFrame"]) -> None:
            inner = FIELDS.removeprefix("value STRUCT<").removesuffix(">").replace(":", "")
            summed(make().selectExpr(f"from_json(cast(value AS STRING), '{inner}') AS value"))

        section = self._race(
            f"parse two of three fields of {self._records:,} JSON values",
            "sum of both",
            {
                IN_SOURCE: lambda: summed(self._ours(FIELDS, valueFormat="json")),
                FROM_JSON: partial(parsed, self._ours),
                PARQUET_FROM_JSON: partial(parsed, self._copy),
            },
            [FROM_JSON],
        )
        return section.aiming_at([_target(section, IN_SOURCE, FROM_JSON, 1.5)])

    def writing(self) -> Section:
        """Write every value."""
        rows = self._spark.read.parquet(self._parquet)

        def to_topic(sync: str) -> None:
            import segue

            path = self._place / "written"
            shutil.rmtree(path, ignore_errors=True)
            with segue.open(path, sync="os") as store:
                store.topic(TOPIC, partitions=PARTITIONS)
            rows.write.format("segue").mode("append").options(
                url=str(path), topic=TOPIC, sync=sync
            ).save()

        def to_parquet() -> None:
            rows.write.option("compression", "none").mode("overwrite").parquet(
                str(self._place / "written_parquet")
            )

        ours, durable = 'Segue, sync "os"', 'Segue, sync "always"'
        section = self._race(
            f"write {self._records:,} values of {VALUE_BYTES} bytes, read from Parquet",
            f"{PARTITIONS} partitions; nothing but sync always waits for the device",
            {
                ours: partial(to_topic, "os"),
                durable: partial(to_topic, "always"),
                PARQUET: to_parquet,
            },
            [PARQUET],
        )
        return section.aiming_at([_target(section, ours, PARQUET, 0.6)])

    def streaming(self) -> Section:
        """Stream everything there is."""
        minute = self._session.minute()
        figures = []
        for name, per_trigger in (("all in one batch", None), ("a quarter each", 4)):
            rates = []
            for round_ in range(self._rounds):
                checkpoint = self._place / "checkpoints" / f"{name} {round_}".replace(" ", "-")
                options = {"url": self._store, "topic": TOPIC, "startingOffsets": "earliest"}
                options["reader"] = f"bench-{per_trigger}-{round_}"
                if per_trigger is not None:
                    options["maxOffsetsPerTrigger"] = str(self._records // per_trigger)
                begin = time.perf_counter()
                query = (
                    self._spark.readStream.format("segue")
                    .schema("value BINARY")
                    .options(**options)
                    .load()
                    .writeStream.format("noop")
                    .option("checkpointLocation", str(checkpoint))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                rates.append(self._records / (time.perf_counter() - begin))
            figures.append(Figure(name=name, samples=tuple(rates)))
        return Section(
            benchmark="spark",
            title=f"stream {self._records:,} records with Trigger.AvailableNow",
            setting=f"to Spark's noop sink, values alone, {MASTER}, {self._rounds} rounds",
            minute=minute,
            figures=figures,
        )

    def small_batches(self) -> Section:
        """Measure what a batch costs that has next to nothing to do."""
        import segue

        minute = self._session.minute()
        path = str(self._place / "small")
        with segue.open(path, sync="os") as store:
            topic = store.topic(TOPIC, partitions=2)
            topic.append_many([b"x" * VALUE_BYTES] * 200 * SMALL_BATCHES)
        figures = []
        for name, sink in (("to Spark's noop sink", None), ("to a topic, exactly once", "copy")):
            stream = (
                self._spark.readStream.format("segue")
                .schema("value BINARY")
                .options(url=path, topic=TOPIC, startingOffsets="earliest")
                .options(reader=f"small-{sink or 'noop'}", maxOffsetsPerTrigger="200")
                .load()
                .writeStream.option("checkpointLocation", f"{path}-checkpoint-{sink}")
            )
            if sink is None:
                stream = stream.format("noop")
            else:
                stream = stream.format("segue").options(url=path, topic=sink, sync="os")
            query = stream.trigger(availableNow=True).start()
            query.awaitTermination()
            took_ms = [
                float(each["durationMs"]["triggerExecution"])
                for each in query.recentProgress
                if each["numInputRows"]
            ]
            warm = took_ms[len(took_ms) // 4 :]
            figures.append(Figure(name=name, samples=(median(warm),)))
        return Section(
            benchmark="spark",
            title="a micro-batch of 200 records",
            setting=f"median of the last three quarters of {SMALL_BATCHES} batches, {MASTER}",
            minute=minute,
            figures=figures,
            unit="ms",
        )


def _once(job: Callable[[], object], count: int) -> Job:
    assert count == 1
    return job


def _target(section: Section, name: str, baseline: str, required: float) -> Target:
    ours, theirs = section.figure(name), section.figure(baseline)
    assert ours is not None
    assert theirs is not None
    return Target(what=f"{name} beside {baseline}", measured=ours.ratio(theirs), required=required)
