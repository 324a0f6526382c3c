"""How the whole store stands: rates, totals, what is wrong, who sees what, and all of it live."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from segue.clock import system_clock
from segue.errors import LogLocked, StorageError
from segue.server import listeners, overlook
from segue.server.building import CountingDisk, build_app
from segue.server.flow import Flow, standing_of
from segue.server.historian import Historian
from segue.server.overlook import LATE_SECONDS, STUCK
from segue.server.picture import NOT_YET
from segue.server.routes import operating, overview
from segue.server.tokens import RoleName, remove_token
from segue.stores.contract import Counts, Queue, QueueStats
from segue.stores.file.queue import FileQueue
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory, open_redis
from segue.tasks.metrics import Metrics
from segue.tasks.worker.reports import WorkerReport, prepare_reports, send_report
from segue.testing import ManualClock
from tests.http_server import shared_http_server
from tests.redis_server import shared_server
from tests.unit.server_support import Place, new_token, placed, until
from tests.waiting import LIMIT_SECONDS

OVERVIEW = "/api/v1/overview"
LIVE = "/api/v1/overview/live"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer waits for its look, and nobody else looks."""
    monkeypatch.setattr(overview, "PATIENCE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(Historian, "ask", lambda _: None)


@pytest.fixture
def clock() -> ManualClock:
    """What the store and the server go by."""
    return ManualClock()


@contextmanager
def shown(
    root: Path,
    clock: ManualClock,
    *,
    tokens: Path | None = None,
    disk: CountingDisk | None = None,
    is_read_only: bool = False,
) -> Iterator[Place]:
    """Serve a directory that goes by a clock."""
    server = shared_http_server()
    with open_directory(root, sync="os", clock=clock, ticks=clock.ticks) as store:
        app = build_app(
            store,
            tokens=tokens,
            has_audit=False,
            is_read_only=is_read_only,
            disk=disk,
            clock=clock,
            ticks=clock.ticks,
        )
        url = server.add(app)
        try:
            yield Place(store, app, url)
        finally:
            server.remove(url)


@pytest.fixture
def place(scratch: Path, clock: ManualClock) -> Iterator[Place]:
    """A directory behind a server."""
    with shown(scratch / "data", clock) as place:
        yield place


def look(place: Place, **headers: str) -> Json:
    """Return how the store is said to stand."""
    answer = place.ask("GET", OVERVIEW, **headers)
    assert answer.status == 200, answer.data
    return answer.json


def rows(said: Json) -> dict[str, Json]:
    """Return what is said of each queue."""
    return {row["name"]: row for row in said["queues"]}


def files_in(root: Path) -> set[Path]:
    """Return all there is below a directory."""
    return set(root.rglob("*"))


# What comes and goes ---------------------------------------------------------------------------


def stats(counts: tuple[int, int, int, int] = (0, 0, 0, 0), **totals: int) -> QueueStats:
    """Return the stats of a queue of which only numbers matter."""
    ready, delayed, leased, dead = counts
    return QueueStats(
        name="jobs",
        counts=Counts(ready=ready, delayed=delayed, leased=leased, dead=dead),
        ready_by_priority={},
        paused=False,
        oldest_ready_seconds=None,
        leases=[],
        totals=totals,
        size_bytes=0,
        pinned_bytes=0,
        damaged=0,
    )


@pytest.mark.parametrize(
    ("before", "now", "came", "went", "failed"),
    [
        (stats(), stats((3, 2, 0, 0)), 5, 0, 0),
        (stats((3, 0, 0, 0)), stats((1, 0, 0, 0), acked=1, popped=2), 1, 3, 0),
        (stats((0, 0, 2, 0)), stats((1, 0, 0, 1), failed=1, buried=1), 0, 0, 2),
        (stats((2, 0, 0, 0)), stats(purged=1, outlived=1), 0, 0, 0),
        (stats((9, 0, 0, 0), acked=50, expired=4), stats((1, 0, 0, 0)), 0, 0, 0),
    ],
    ids=["pushed", "taken", "failed", "dropped", "made anew"],
)
def test_what_happened_follows_from_what_is_held_and_what_is_gone(
    before: QueueStats, now: QueueStats, came: int, went: int, failed: int
) -> None:
    """Nobody counts what is pushed; and nothing ever happens less often than never."""
    flow = Flow.between(standing_of(before), standing_of(now))

    assert flow == Flow(came=came, went=went, failed=failed)


def test_rates_are_those_between_two_looks(place: Place, clock: ManualClock) -> None:
    """Of what comes, goes and fails; of one look alone nothing follows."""
    queue = place.store.queue("jobs")
    queue.push_many([b"x"] * 10)
    first = look(place)
    queue.push_many([b"x"] * 6)
    queue.pop_many(4)
    queue.nack(queue.lease())
    clock.advance(seconds=2)
    second = look(place)

    names = ("in_per_second", "out_per_second", "failed_per_second")
    assert [rows(first)["jobs"][name] for name in names] == [None] * 3
    assert [first["totals"][name] for name in names] == [None] * 3
    assert [rows(second)["jobs"][name] for name in names] == [3.0, 2.0, 0.5]
    assert [second["totals"][name] for name in names] == [3.0, 2.0, 0.5]


def test_totals_are_those_of_all_queues(place: Place, clock: ManualClock) -> None:
    """And name the queue in which something has waited longest."""
    place.store.queue("old").push(b"x")
    clock.advance(seconds=30)
    young = place.store.queue("young")
    young.push_many([b"x"] * 5)
    young.lease().bury("bad")
    young.lease()
    place.store.queue("later").push(b"x", delay=60)
    place.store.queue("later").pause()
    clock.advance(seconds=1)
    said = look(place)
    totals = said["totals"]

    assert [totals[each] for each in ("ready", "delayed", "leased", "dead")] == [4, 1, 1, 1]
    assert (totals["oldest_queue"], totals["oldest_seconds"]) == ("old", 31.0)
    assert totals["paused"] == 1
    assert totals["size_bytes"] == sum(row["size_bytes"] for row in said["queues"]) > 0
    assert [row["name"] for row in said["queues"]] == ["later", "old", "young"]
    assert [row["paused"] for row in said["queues"]] == [True, False, False]


def test_an_empty_store_is_shown_and_nothing_is_made(scratch: Path, clock: ManualClock) -> None:
    """To look leaves no trace."""
    with shown(scratch / "data", clock) as place:
        before = files_in(scratch)
        said = look(place)

        assert files_in(scratch) == before
    assert said["queues"] == []
    assert said["totals"]["ready"] == said["more_queues"] == 0
    assert said["totals"]["oldest_seconds"] is None
    assert said["totals"]["oldest_queue"] == ""


# The disk, the server, who asks ------------------------------------------------------------------


def test_the_disk_and_what_the_store_takes_up_of_it_are_shown(
    place: Place, clock: ManualClock
) -> None:
    """With queues and topics; how large topics are is looked up now and then."""
    place.store.queue("jobs").push(b"x" * 10_000)
    place.store.topic("orders", partitions=1).append(b"x" * 10_000)
    said = look(place)
    disk = said["disk"]

    topic = place.store.topic("orders").info().size_bytes
    queue = rows(said)["jobs"]["size_bytes"]
    assert disk["store_bytes"] >= queue + topic > 20_000
    assert disk["total_bytes"] >= disk["free_bytes"] > 0


def test_syncs_are_told_as_a_rate(scratch: Path, clock: ManualClock) -> None:
    """Where somebody counts them; of a server that only shows they would say nothing."""
    disk = CountingDisk()
    with shown(scratch / "data", clock, disk=disk) as place:
        first = look(place)["syncs_per_second"]
        disk.syncs += 8
        clock.advance(seconds=4)
        second = look(place)["syncs_per_second"]
    with shown(scratch / "data", clock, disk=disk, is_read_only=True) as place:
        look(place)
        clock.advance(seconds=4)
        read_only = look(place)["syncs_per_second"]

    assert (first, second, read_only) == (None, 2.0, None)


@pytest.mark.parametrize(
    ("roles", "is_read_only", "may_act"),
    [(("admin",), False, True), (("admin",), True, False), (("read", "produce"), False, False)],
)
def test_who_asks_is_told_what_they_may_do(
    scratch: Path,
    clock: ManualClock,
    roles: tuple[RoleName, ...],
    is_read_only: bool,
    may_act: bool,
) -> None:
    """To act takes the role admin, and a server that lets anybody act."""
    tokens = scratch / "tokens.json"
    _, text = new_token(tokens, *roles, names=("a*", "b"))
    with shown(scratch / "data", clock, tokens=tokens, is_read_only=is_read_only) as place:
        you = look(place, authorization=text)["you"]

    assert you == {
        "name": "tester",
        "roles": sorted(roles),
        "names": ["a*", "b"],
        "may_act": may_act,
    }


def test_the_kind_of_store_and_the_servers_health_are_shown(place: Place) -> None:
    """So that a page need not ask for them as well."""
    said = look(place)

    assert (said["store"]["kind"], said["store"]["durable"]) == ("directory", "os")
    assert said["health"] == {"status": "ok", "reason": ""}


def test_a_token_sees_what_it_is_for(scratch: Path, clock: ManualClock) -> None:
    """Rows, totals and sizes are those of its own queues and topics, as is how many more."""
    tokens = scratch / "tokens.json"
    _, text = new_token(tokens, "read", names=("mine-*",))
    with shown(scratch / "data", clock, tokens=tokens) as place:
        for name, count in (("mine-a", 1), ("mine-b", 2), ("theirs", 400)):
            place.store.queue(name).push_many([b"x"] * count)
        place.store.topic("theirs", partitions=1).append(b"x" * 100_000)
        said = look(place, authorization=text)

    assert list(rows(said)) == ["mine-a", "mine-b"]
    assert said["totals"]["ready"] == 3
    assert said["totals"]["oldest_queue"].startswith("mine-")
    assert said["disk"]["store_bytes"] == said["totals"]["size_bytes"]
    assert said["more_queues"] == 0


# Workers -----------------------------------------------------------------------------------------


def report(worker: str, queue: str, *, runs_ms: list[int], per_second: float = 0.0) -> WorkerReport:
    """Return what a worker says that ran some tasks."""
    metrics = Metrics()
    for run_ms in runs_ms:
        metrics.record("work", queue, "completed", 5_000, run_ms * 1_000)
    return WorkerReport(
        worker=worker,
        host="here",
        pid=1,
        kind="thread",
        state="running",
        at_us=system_clock(),
        started_us=1,
        queues=[queue],
        size=4,
        busy=1,
        min=1,
        max=8,
        metrics=metrics.snapshot().to_dict(),
        per_second=per_second,
    )


def test_workers_and_what_they_did_are_put_together(scratch: Path) -> None:
    """Percentiles are those of all their tasks; a token sees the workers of its own queues."""
    tokens = scratch / "tokens.json"
    _, admin = new_token(tokens, "admin")
    _, text = new_token(tokens, "read", names=("mine",))
    with placed(scratch / "data", tokens=tokens) as place:
        prepare_reports(place.store)
        send_report(place.store, report("a", "mine", runs_ms=[10, 10], per_second=1.5))
        send_report(place.store, report("b", "theirs", runs_ms=[1_000] * 98, per_second=2.0))
        everything = look(place, authorization=admin)
        mine = look(place, authorization=text)

    assert everything["workers"] == {"count": 2, "slots": 8, "busy": 2}
    tasks = everything["tasks"]
    assert (tasks["run"]["count"], tasks["wait"]["count"]) == (100, 100)
    assert tasks["run"]["p50_ms"] == pytest.approx(1_000, rel=0.02)
    assert (tasks["per_second"], tasks["counts"]["completed"]) == (3.5, 100)
    assert mine["workers"] == {"count": 1, "slots": 4, "busy": 1}
    assert mine["tasks"]["run"]["max_ms"] == 10
    assert mine["tasks"]["counts"]["completed"] == 2


def test_a_worker_that_fell_silent_is_told_of_for_a_while(scratch: Path) -> None:
    """What it was at when it was killed is what somebody looks for; who stopped said so."""
    now_us = ManualClock(system_clock())
    with placed(scratch, clock=now_us) as place:
        prepare_reports(place.store)
        killed = report("killed", "mail", runs_ms=[1])
        stopped = msgspec.structs.replace(report("stopped", "mail", runs_ms=[]), state="stopped")
        for each in (killed, report("stopped", "mail", runs_ms=[]), stopped):
            send_report(place.store, each)
        place.app.tasks.clock = now_us
        said = []
        for seconds in (5, 10, 580, 10):
            now_us.advance(seconds=seconds)
            told = place.ask("GET", "/api/v1/workers").json
            said.append(
                [[row["worker"] for row in cast("list[Json]", told[name])] for name in told]
            )

    assert said == [[["killed"], []], [[], ["killed"]], [[], ["killed"]], [[], []]]


def test_without_the_extra_there_are_no_tasks_and_no_workers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the rest is shown."""
    monkeypatch.setattr("segue.server.overlook.crew_of", lambda *_: None)
    place.store.queue("jobs").push(b"x")
    said = look(place)

    assert (said["tasks"], said["workers"]) == (None, None)
    assert said["totals"]["ready"] == 1


# What is wrong -----------------------------------------------------------------------------------


def test_a_queue_that_cannot_be_read_says_why_and_the_others_count_on(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was last known of it stays, and once it can be read again all is well."""
    for name in ("bad", "good"):
        place.store.queue(name).push(b"x")
    look(place)
    real = FileQueue.stats

    def fail(queue: FileQueue) -> QueueStats:
        if queue.name == "bad":
            raise StorageError("reading /srv/data/queues/bad: Input/output error")
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", fail)
    place.store.queue("good").push(b"y")
    clock.advance(seconds=1)
    during = look(place)
    monkeypatch.setattr(FileQueue, "stats", real)
    clock.advance(seconds=overlook.RETRY_SECONDS)
    after = look(place)

    assert "Input/output error" in rows(during)["bad"]["problem"]
    assert "/srv" not in rows(during)["bad"]["problem"]
    assert rows(during)["bad"]["ready"] == 1
    assert (rows(during)["good"]["ready"], rows(during)["good"]["problem"]) == (2, "")
    assert during["totals"]["ready"] == 3
    assert rows(after)["bad"]["problem"] == ""


def test_a_queue_that_is_damaged_on_disk_has_a_problem(scratch: Path, clock: ManualClock) -> None:
    """From the first look on: nothing is known of it then, and nothing is made up."""
    root = scratch / "data"
    with open_directory(root, sync="os") as store:
        for name in ("bad", "good"):
            store.queue(name).push(b"x")
    rules = root / "queues" / "bad" / "ledger"
    for path in rules.iterdir():
        path.unlink()
    rules.rmdir()
    rules.write_bytes(b"no directory")
    with shown(root, clock) as place:
        said = look(place)

    assert rows(said)["bad"]["problem"] not in ("", NOT_YET)
    assert rows(said)["bad"]["ready"] == 0
    assert rows(said)["good"]["problem"] == ""
    assert said["totals"]["ready"] == 1


def test_a_queue_that_cannot_be_opened_is_left_alone_for_a_while(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take seconds to fail: one look at the store tries it once, the next ones not yet."""
    tries = 0
    place.store.queue("bad").push(b"x")
    place.store.let_go_of_queue("bad")

    def fail(store: FileStore, name: str) -> Queue:
        nonlocal tries
        tries += 1
        raise LogLocked("another owner holds it")

    with monkeypatch.context() as failing:
        failing.setattr(FileStore, "queue", fail)
        said = look(place)
        after_one = tries
        clock.advance(seconds=1)
        look(place)
        after_two = tries
        clock.advance(seconds=overlook.RETRY_SECONDS)
        look(place)
    clock.advance(seconds=overlook.RETRY_SECONDS)
    after = look(place)

    assert "another owner" in rows(said)["bad"]["problem"]
    assert (after_one, after_two, tries) == (1, 1, 2)
    assert (rows(after)["bad"]["problem"], rows(after)["bad"]["ready"]) == ("", 1)


def test_a_queue_that_was_removed_is_shown_no_more(place: Place, clock: ManualClock) -> None:
    """Also if that was done while the server had it open."""
    place.store.queue("gone").push(b"x")
    place.store.queue("here").push(b"x")
    look(place)
    place.store.remove_queue("gone")
    clock.advance(seconds=1)
    said = look(place)

    assert list(rows(said)) == ["here"]
    assert "gone" not in place.store.queues()


def test_a_queue_that_was_made_anew_has_no_negative_rates(place: Place, clock: ManualClock) -> None:
    """Its numbers begin again, and say nothing of what happened."""
    place.store.queue("jobs").push_many([b"x"] * 50)
    place.store.queue("jobs").pop_many(20)
    look(place)
    place.store.remove_queue("jobs")
    place.store.queue("jobs").push(b"x")
    clock.advance(seconds=1)
    row = rows(look(place))["jobs"]

    assert (row["ready"], row["problem"]) == (1, "")
    assert (row["in_per_second"], row["out_per_second"]) == (0.0, 0.0)


def test_a_queue_that_hangs_does_not_stop_the_others(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over with a problem, by another thread, until it comes back."""
    monkeypatch.setattr(overview, "PATIENCE_SECONDS", 0.02)
    for name in ("a", "b", "c"):
        place.store.queue(name).push(b"x")
    until(lambda: all(row["problem"] == "" for row in look(place)["queues"]))
    hangs, comes_back, real = threading.Event(), threading.Event(), FileQueue.stats

    def hang(queue: FileQueue) -> QueueStats:
        if queue.name == "b":
            hangs.set()
            comes_back.wait(LIMIT_SECONDS)
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", hang)
    place.store.queue("c").push(b"y")
    clock.advance(seconds=1)
    until(lambda: look(place) is not None and hangs.is_set())
    clock.advance(seconds=LATE_SECONDS + 1)
    until(lambda: rows(look(place))["c"]["ready"] == 2)
    during = rows(look(place))
    for _ in range(3):  # It is not looked at again meanwhile: no thread more hangs.
        clock.advance(seconds=LATE_SECONDS + 1)
        look(place)
    stuck = dict(place.app.overlook._stuck)
    comes_back.set()
    until(lambda: not place.app.overlook._stuck)
    clock.advance(seconds=1)
    until(lambda: rows(look(place))["b"]["problem"] == "")

    assert (during["b"]["problem"], during["b"]["ready"]) == (STUCK, 1)
    assert during["a"]["problem"] == ""
    assert list(stuck) == ["b"]


def test_metrics_come_though_a_queue_hangs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who collects them has no patience, and each try would hold another thread."""
    monkeypatch.setattr(operating, "PATIENCE_SECONDS", 0.02)
    for name in ("a", "b", "c"):
        place.store.queue(name).push(b"x")

    def told() -> set[str]:
        lines = place.ask("GET", "/metrics").data.decode().splitlines()
        return {name for name in "abc" if f'{{queue="{name}",state="ready"}} 1.0' in str(lines)}

    with place.store._queue_core("b").turn():
        until(lambda: told() == {"a"})
    until(lambda: told() == {"a", "b", "c"})


def test_a_look_that_takes_long_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known yet is said to be so: nobody waits until all queues are open."""
    monkeypatch.setattr(overview, "PATIENCE_SECONDS", 0.02)
    comes_back, real = threading.Event(), FileQueue.stats
    place.store.queue("slow").push(b"x")

    def wait(queue: FileQueue) -> QueueStats:
        comes_back.wait(LIMIT_SECONDS)
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", wait)
    until(lambda: bool(look(place)["queues"]))
    early = rows(look(place))["slow"]
    comes_back.set()
    until(lambda: rows(look(place))["slow"]["problem"] == "")

    assert (early["problem"], early["ready"]) == (NOT_YET, 0)


def test_what_was_seen_before_is_not_said_to_be_of_now(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a look is under way, the time that is told is that of the last one."""
    comes_back, real = threading.Event(), FileQueue.stats
    place.store.queue("slow").push(b"x")
    first = look(place)["at_us"]

    def wait(queue: FileQueue) -> QueueStats:
        comes_back.wait(LIMIT_SECONDS)
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", wait)
    clock.advance(seconds=2)
    with monkeypatch.context() as hasty:
        hasty.setattr(overview, "PATIENCE_SECONDS", 0.02)
        during = look(place)["at_us"]
    comes_back.set()
    after = look(place)["at_us"]

    assert (during, after) == (first, first + 2_000_000)


def test_a_look_that_hangs_does_not_keep_the_server_from_ending(
    scratch: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given a moment, and then left where it is."""
    monkeypatch.setattr(overview, "PATIENCE_SECONDS", 0.02)
    monkeypatch.setattr(overlook, "CLOSING_SECONDS", 0.02)
    hangs, comes_back, real = threading.Event(), threading.Event(), FileQueue.stats

    def hang(queue: FileQueue) -> QueueStats:
        hangs.set()
        comes_back.wait(LIMIT_SECONDS)
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", hang)
    try:
        with shown(scratch, clock) as place:
            place.store.queue("jobs").push(b"x")
            until(lambda: look(place) is not None and hangs.is_set())
            looking = place.app.overlook
    finally:
        is_still_hanging = not comes_back.is_set()
        comes_back.set()

    assert is_still_hanging
    until(lambda: looking._turn is None)


# How much it costs -------------------------------------------------------------------------------


def test_the_store_is_looked_at_once_a_second_however_many_ask(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks within it gets what the last one got."""
    looks = 0
    real = FileQueue.stats

    def count(queue: FileQueue) -> QueueStats:
        nonlocal looks
        looks += 1
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", count)
    place.store.queue("jobs").push(b"x")
    for _ in range(5):
        look(place)
    place.store.queue("jobs").push(b"x")
    same = look(place)["totals"]["ready"]
    first = looks
    clock.advance(seconds=1)

    assert (first, same) == (1, 1)
    assert look(place)["totals"]["ready"] == 2
    assert looks == 2


@pytest.fixture
def took(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long a look at each queue takes, by the clock; the rest none."""
    seconds: dict[str, float] = {}
    real = FileQueue.stats

    def take_long(queue: FileQueue) -> QueueStats:
        clock.advance(seconds=seconds.get(queue.name, 0.0))
        return real(queue)

    monkeypatch.setattr(FileQueue, "stats", take_long)
    return seconds


def test_a_look_that_took_long_is_not_made_again_at_once(
    place: Place, clock: ManualClock, took: dict[str, float]
) -> None:
    """Looking takes a quarter of the time at most, however many queues there are."""
    for number in range(40):
        place.store.queue(f"q{number}").push(b"x")
        took[f"q{number}"] = 0.02
    first = look(place)["at_us"]
    clock.advance(seconds=2.3)
    early = look(place)["at_us"]
    clock.advance(seconds=0.2)
    late = look(place)["at_us"]

    assert early == first
    assert late > first


def test_a_queue_that_takes_long_is_looked_at_more_seldom(
    place: Place, clock: ManualClock, took: dict[str, float]
) -> None:
    """To look holds up whoever pushes there; the others are looked at as ever."""
    for name in ("quick", "slow"):
        place.store.queue(name).push(b"x")
    took["slow"] = 0.5
    look(place)
    for name in ("quick", "slow"):
        place.store.queue(name).push(b"x")
    clock.advance(seconds=5)
    early = rows(look(place))
    clock.advance(seconds=5)
    late = rows(look(place))

    assert (early["quick"]["ready"], early["slow"]["ready"]) == (2, 1)
    assert late["slow"]["ready"] == 2


def test_only_so_many_rows_are_sent_and_the_rest_is_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in the totals."""
    monkeypatch.setattr(overview, "QUEUES_SHOWN_MAX", 2)
    for name in ("a", "b", "c"):
        place.store.queue(name).push(b"x")
    said = look(place)

    assert (list(rows(said)), said["more_queues"]) == (["a", "b"], 1)
    assert said["totals"]["ready"] == 3


def test_of_many_queues_those_are_listed_that_want_to_be_looked_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, whatever their names are."""
    monkeypatch.setattr(overview, "QUEUES_SHOWN_MAX", 2)
    for name in ("a", "b", "y", "z"):
        place.store.queue(name).push(b"x")
    place.store.queue("y").lease().bury("bad")
    place.store.queue("z").pause()
    said = look(place)

    assert (list(rows(said)), said["more_queues"]) == (["y", "z"], 2)


def test_no_more_queues_are_opened_than_there_are_descriptors_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are open anyway are looked at first; the others are counted."""
    monkeypatch.setattr(overlook, "queues_max", lambda: 2)
    for name in ("a", "b", "c", "d"):
        place.store.queue(name).push(b"x")
        place.store.let_go_of_queue(name)
    place.app.queue("d")
    said = look(place)

    assert (list(rows(said)), said["more_queues"]) == (["a", "d"], 2)
    assert list(place.app.queues.opened) == ["d", "a"]


# Live --------------------------------------------------------------------------------------------


def event(stream: http.client.HTTPResponse) -> tuple[int, Json]:
    """Return the id of the next event, and what it says."""
    while (kind := stream.readline()) in (b": alive\n", b"\n"):
        continue  # A sign of life.
    id_, data, end = (stream.readline() for _ in range(3))
    assert (kind, end) == (b"event: overview\n", b"\n")
    return int(id_.removeprefix(b"id: ")), json.loads(data.removeprefix(b"data: "))


@pytest.fixture
def live(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A directory at which those who listen have others look twenty times a second."""
    monkeypatch.setattr(listeners, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(overlook, "LOOK_SECONDS", 0.05)
    with placed(scratch) as place:
        yield place


def test_events_tell_how_the_store_stands_again_and_again(live: Place) -> None:
    """The first at once, the same as is answered to who asks; and what happens shows."""
    queue = live.store.queue("jobs")
    queue.push(b"x")
    with live.asked("GET", LIVE) as stream:
        headers = dict(stream.getheaders())
        number, first = event(stream)
        queue.push_many([b"x"] * 3)
        later = first
        while later["totals"]["ready"] != 4:
            id_, later = event(stream)
        asked = look(live)

    assert headers["content-type"] == "text/event-stream"
    assert number == first["at_us"]
    assert id_ == later["at_us"] > number
    assert later.keys() == asked.keys()
    assert later["totals"]["in_per_second"] > 0


def test_no_look_is_told_twice(
    scratch: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is none, because a look takes long, there are signs of life."""
    monkeypatch.setattr(listeners, "LOOK_SECONDS", 0.01)
    with shown(scratch, clock) as place, place.asked("GET", LIVE) as stream:
        first, _ = event(stream)
        quiet = [stream.readline() for _ in range(4)]
        clock.advance(seconds=1)
        second, _ = event(stream)

    assert quiet == [b": alive\n", b"\n"] * 2
    assert second == first + 1_000_000


def test_a_stream_of_events_ends_with_the_server(live: Place) -> None:
    """In order: its last event is whole."""
    loop = shared_http_server()._loop
    assert loop is not None
    with live.asked("GET", LIVE) as stream:
        event(stream)
        loop.call_soon_threadsafe(live.app.let_go)
        rest = stream.read()

    assert rest == b"" or rest.endswith(b"\n\n")


def test_a_stream_of_events_ends_when_its_token_is_taken_back(scratch: Path) -> None:
    """Whoever is let in no more is told nothing more."""
    path = scratch / "tokens.json"
    new_token(path, "admin")
    token, text = new_token(path, "read", names=("mine",))
    with placed(scratch / "data", tokens=path) as place:
        place.store.queue("mine").push(b"x")
        place.store.queue("theirs").push(b"x")
        with place.asked("GET", LIVE, authorization=text) as stream:
            _, said = event(stream)
            remove_token(path, token.id)
            tokens = place.app.guard.tokens
            assert tokens is not None
            tokens._look_at = 0
            stream.read()  # It ends.

    assert list(rows(said)) == ["mine"]


def test_all_who_listen_are_told_of_the_same_looks(live: Place) -> None:
    """And nobody looks once all have left."""
    with live.asked("GET", LIVE) as one, live.asked("GET", LIVE) as other:
        first = {event(one)[0] for _ in range(5)}
        second = {event(other)[0] for _ in range(5)}
    there = live.app.listeners
    until(lambda: there._count == 0 and there._looking is None)

    assert first & second


def test_only_so_many_may_listen(live: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is sent away until one leaves."""
    monkeypatch.setattr(listeners, "LISTENERS_MAX", 1)
    with live.asked("GET", LIVE) as stream:
        event(stream)
        refused = live.ask("GET", LIVE)
    until(lambda: live.app.listeners._count == 0)
    with live.asked("GET", LIVE) as stream:
        event(stream)

    assert (refused.status, refused.code) == (503, "overloaded")


# Redis -------------------------------------------------------------------------------------------


def test_a_store_on_redis_is_shown_too(clock: ManualClock) -> None:
    """By the same promises; it has no disk that we know of."""
    server = shared_http_server()
    with open_redis(
        f"{shared_server().url}?namespace=test-overview", clock=clock, ticks=clock.ticks
    ) as store:
        store.remove_queue("jobs")
        app = build_app(store, has_audit=False, clock=clock, ticks=clock.ticks)
        url = server.add(app)
        place = Place(store, app, url)  # type: ignore[arg-type]
        try:
            empty = look(place)
            store.queue("jobs").push_many([b"x"] * 4)
            clock.advance(seconds=1)
            look(place)
            store.queue("jobs").pop_many(2)
            clock.advance(seconds=2)
            said = look(place)
        finally:
            server.remove(url)
            store.remove_queue("jobs")

    assert empty["queues"] == []
    assert (said["store"]["kind"], said["disk"]) == ("redis", None)
    assert (rows(said)["jobs"]["ready"], rows(said)["jobs"]["out_per_second"]) == (2, 1.0)
