"""How a store stood over time: points, gaps, and a history that outlasts the server."""

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import StorageError
from segue.log.layout import NAME_CHARACTERS_MAX
from segue.server import historian, history
from segue.server import sampler as sampling
from segue.server.building import build_app
from segue.server.flow import Standing
from segue.server.historian import SAMPLE_SECONDS, Historian
from segue.server.history import GAP_SECONDS, History, Points
from segue.server.open_queues import OpenQueues
from segue.server.overlook import QUEUES_LOOKED_MAX, Overlook
from segue.server.picture import Picture, Row
from segue.server.sampler import WHOLE_SECONDS, Sampler
from segue.server.samples import (
    HISTORY_TOPIC,
    QUEUES_SAMPLED_MAX,
    RULES,
    QueueSample,
    Sample,
    encoded,
    is_whole,
    sample_of,
)
from segue.server.serving import ServerThread
from segue.server.task_flow import BOUNDS_US, Crew, Labour, Sum, spreads_between
from segue.server.tracks import RESOLUTIONS, Reading, Shape, Track
from segue.stores.contract import Store
from segue.stores.file.store import FileStore
from segue.stores.file.topics.topic import FileTopic
from segue.stores.opening import open_directory, open_redis
from segue.tasks.metrics import Percentiles, SeriesSnapshot
from segue.testing import ManualClock
from segue.testing.clock import START_US
from tests.http_server import shared_http_server
from tests.redis_server import shared_server
from tests.unit.server_support import Place, new_token, until

HISTORY = "/api/v1/overview/history"
HOUR: Final = 3_600
SECOND_US: Final = 1_000_000
FIRST_US: Final = START_US - START_US % (1_800 * SECOND_US)
"""When a step begins, at every resolution."""


def at(seconds: float) -> int:
    """Return a moment so many seconds after the first."""
    return FIRST_US + round(seconds * SECOND_US)


def numbers(
    ready: int = 0, *, came: int = 0, went: int = 0, oldest: float | None = None
) -> QueueSample:
    """Return what a sample says of a queue of which little matters."""
    return QueueSample(ready, 0, 0, 0, came, went, 0, 100, oldest)


def sample(
    seconds: float,
    *,
    since: float | None = None,
    is_whole: bool = False,
    queues: dict[str, QueueSample] | None = None,
    gone: list[str] | None = None,
) -> Sample:
    """Return a sample of some moment."""
    return Sample(
        is_whole=is_whole,
        at_us=at(seconds),
        since_us=None if since is None else at(since),
        queues=queues or {},
        gone=gone or [],
    )


def known(points: Points, column: str) -> dict[int, float | None]:
    """Return what is known, by seconds after the first moment."""
    return {
        (at_us - FIRST_US) // SECOND_US: value
        for at_us, value in zip(points.at_us, points.columns[column], strict=True)
        if value is not None
    }


# Points ------------------------------------------------------------------------------------------

ONE: Final = Shape(lasts=1, mosts=1, means=1)


def reading(last: float, count: float, oldest_since_us: float = nan) -> Reading:
    """Return what is known of a span, with one number of each kind."""
    return Reading(array("d", [last]), oldest_since_us, (count,))


def columns(track: Track, count: int) -> list[list[float | None]]:
    """Return what is known of the first steps: the last numbers, the mosts, the rates."""
    found = track.columns(first=at(0) // track.step_us, count=count)
    return [[None if isnan(value) else value for value in column] for column in found]


def test_a_step_has_the_last_number_the_most_and_the_mean_rate() -> None:
    """Each as makes sense for it; of a step of which nothing is known there is nothing."""
    track = Track(10, 6, ONE)
    track.add(at(10), at(14), reading(7, 4, at(4)))
    track.add(at(14), at(19), reading(5, 14, at(16)))

    assert columns(track, 3) == [[None, 5.0, None], [None, 10.0, None], [None, 2.0, None]]


def test_a_span_over_several_steps_is_in_each_of_them_for_its_time() -> None:
    """What is known at its end says nothing of the step it began in but the rate."""
    track = Track(10, 6, ONE)
    track.add(None, at(5), reading(1, 0))
    track.add(at(5), at(25), reading(9, 80))
    lasts, _, rates = columns(track, 3)

    assert (lasts, rates) == ([1.0, 9.0, 9.0], [4.0, 4.0, 4.0])


def test_the_oldest_points_make_way() -> None:
    """A track has a fixed size, and what it no longer has is not taken for something else."""
    track = Track(10, 4, ONE)
    for second in range(0, 60, 10):
        track.add(None, at(second), reading(second, 0))
    found = track.columns(first=at(20) // track.step_us, count=4)
    ahead = track.columns(first=at(40) // track.step_us, count=4)

    assert list(found[0]) == [20.0, 30.0, 40.0, 50.0]
    assert [isnan(value) for value in ahead[0]] == [False, False, True, True]


@given(st.lists(st.floats(min_value=1, max_value=19), min_size=3, max_size=40))
def test_late_samples_leave_no_hole(pauses: list[float]) -> None:
    """However uneven the pauses, every step in between has a point and every count its time."""
    track = Track(10, 360, ONE)
    second = 0.0
    for pause in pauses:
        track.add(at(second), at(second + pause), reading(1, 3 * pause))
        second += pause
    lasts, _, rates = columns(track, int(second // 10) + 1)

    # The very last moment may be the first of its step: no time has passed in it yet.
    assert rates[:-1] == pytest.approx([3.0] * (len(rates) - 1), abs=0.01)
    assert set(lasts[1:]) <= {1.0}


@pytest.mark.parametrize(("step", "count"), RESOLUTIONS)
def test_no_resolution_has_more_points_than_are_shown(step: int, count: int) -> None:
    """At most four hundred, and together they reach back for a week."""
    assert count <= 400
    assert RESOLUTIONS[-1][0] * RESOLUTIONS[-1][1] >= 7 * 86_400
    assert 1_800 % step == 0


# Put together ------------------------------------------------------------------------------------


def test_rates_follow_from_numbers_that_grow() -> None:
    """For a queue and for all of them; the first sample has none."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers(5, came=5), "b": numbers()}))
    past.apply(sample(10, since=0, queues={"a": numbers(25, came=35, went=10)}))
    past.apply(sample(20, since=10, queues={"b": numbers(10, came=10)}))
    store = past.of_store(HOUR, at(20))
    queue = past.of_queue("a", HOUR, at(20))

    assert known(store, "ready") == {0: 5, 10: 25, 20: 35}
    assert known(store, "in_per_second") == {0: 3.0, 10: 1.0}
    assert known(store, "out_per_second") == {0: 1.0, 10: 0.0}
    assert known(queue, "in_per_second") == {0: 3.0, 10: 0.0}
    assert (store.step_seconds, len(store.at_us)) == (10.0, 360)


def test_what_is_in_no_sample_stood_as_before() -> None:
    """Samples have only what changed; and what waits gets older all the same."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers(5, came=5, oldest=2.0)}))
    past.apply(sample(60, since=50))
    queue = past.of_queue("a", HOUR, at(60))

    assert known(queue, "ready") == dict.fromkeys(range(0, 70, 10), 5)
    assert known(queue, "oldest_seconds")[60] == 62.0
    assert set(known(queue, "in_per_second").values()) == {0.0}


def test_a_sample_says_until_when_the_one_before_held() -> None:
    """So a store in which nothing happens needs no samples, and what then happens is sharp."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers()}))
    past.apply(sample(610, since=600, queues={"a": numbers(20, came=20)}))
    points = known(past.of_store(HOUR, at(610)), "in_per_second")

    assert points[600] == 2.0
    assert {value for second, value in points.items() if second < 600} == {0.0}
    assert len(points) == 61


def test_a_gap_has_no_points_and_what_happened_in_it_counts_for_none() -> None:
    """Nobody knows when in that time it was."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers()}))
    past.apply(sample(10, since=0, queues={"a": numbers(10, came=10)}))
    past.apply(sample(500, is_whole=True, queues={"a": numbers(0, came=900, went=900)}))
    past.apply(sample(510, since=500, queues={"a": numbers(0, came=920, went=920)}))
    points = past.of_store(HOUR, at(510))

    assert known(points, "ready") == {0: 0, 10: 10, 500: 0, 510: 0}
    assert known(points, "in_per_second") == {0: 1.0, 500: 2.0}


def test_a_short_silence_is_no_gap() -> None:
    """A server that is started anew: its rates are the mean over the silence."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers()}))
    past.apply(sample(GAP_SECONDS, is_whole=True, queues={"a": numbers(60, came=60)}))
    points = known(past.of_store(HOUR, at(GAP_SECONDS)), "in_per_second")

    assert points == {0: 2.0, 10: 2.0, 20: 2.0}


def test_numbers_that_go_back_are_no_rate() -> None:
    """A queue that was removed and made anew counts from 0."""
    past = History()
    past.apply(sample(0, is_whole=True, queues={"a": numbers(9, came=900, went=891)}))
    past.apply(sample(10, since=0, queues={"a": numbers(1, came=1)}))
    points = past.of_store(HOUR, at(10))

    assert known(points, "in_per_second") == {0: 0.0}
    assert known(points, "out_per_second") == {0: 0.0}


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "missing in a whole one"])
def test_a_queue_that_is_gone_ends(is_told: bool) -> None:
    """It counts no more, and what it was stays to be seen."""
    past = History()
    both = {"a": numbers(5, came=5), "b": numbers(3, came=3)}
    past.apply(sample(0, is_whole=True, queues=both))
    if is_told:
        past.apply(sample(10, since=0, gone=["a"]))
    else:
        past.apply(sample(10, since=0, is_whole=True, queues={"b": both["b"]}))
    past.apply(sample(30, since=20))

    assert known(past.of_store(HOUR, at(30)), "ready") == {0: 8, 10: 3, 20: 3, 30: 3}
    assert known(past.of_queue("a", HOUR, at(30)), "ready") == {0: 5}


def test_reading_may_begin_in_the_middle() -> None:
    """Of the whole store nothing is known before all of its queues are."""
    past = History()
    past.apply(sample(0, since=-10, queues={"a": numbers(5)}))
    past.apply(sample(10, since=0, is_whole=True, queues={"a": numbers(5), "b": numbers(2)}))

    assert known(past.of_store(HOUR, at(10)), "ready") == {10: 7}
    assert known(past.of_queue("a", HOUR, at(10)), "ready") == {0: 5, 10: 5}


def test_older_samples_change_nothing() -> None:
    """Two servers may tell of the same moments."""
    past = History()
    past.apply(sample(10, is_whole=True, queues={"a": numbers(5)}))
    past.apply(sample(8, is_whole=True, queues={"a": numbers(99)}))

    assert known(past.of_store(HOUR, at(10)), "ready") == {10: 5}


def test_a_clock_that_was_set_back_ends_nothing() -> None:
    """Our own samples go on from there; those of others are taken for old."""
    past = History()
    past.apply(sample(5_000, is_whole=True, queues={"a": numbers(5)}), is_own=True)
    past.apply(sample(0, is_whole=True, queues={"a": numbers(9)}))
    past.apply(sample(0, is_whole=True, queues={"a": numbers(7)}), is_own=True)

    assert known(past.of_store(HOUR, at(0)), "ready") == {0: 7}


def test_only_so_many_queues_have_a_history_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are in that of the store, and one that is gone makes way."""
    monkeypatch.setattr(history, "SERIES_MAX", 2)
    past = History()
    three = {name: numbers(1) for name in ("a", "b", "c")}
    past.apply(sample(0, is_whole=True, queues=three))
    before = past.queues
    past.apply(sample(10, since=0, gone=["a"]))
    past.apply(sample(20, since=10, queues={"c": numbers(4)}))

    assert (before, past.queues) == (["a", "b"], ["b", "c"])
    assert known(past.of_store(HOUR, at(20)), "ready") == {0: 3, 10: 2, 20: 5}


@pytest.mark.parametrize(
    ("seconds", "step", "count"),
    [(60, 10, 6), (3_600, 10, 360), (3_601, 120, 31), (43_200, 120, 360), (604_800, 1_800, 336)],
)
def test_the_finest_resolution_is_shown_that_reaches_back(
    seconds: int, step: int, count: int
) -> None:
    points = History().of_store(seconds, at(0))

    assert (points.step_seconds, len(points.at_us)) == (step, count)


# Tasks -------------------------------------------------------------------------------------------


def crew(**runs: dict[int, int]) -> Crew:
    """Return workers that ran tasks: how many, by the bound of how long they took."""

    def up_to(counts: dict[int, int]) -> list[int]:
        return [sum(n for place, n in counts.items() if place <= each) for each in range(size)]

    size = len(BOUNDS_US)
    nothing = SeriesSnapshot.merge("", "", [])
    labours = {
        name: Labour(mark=b"", total=nothing, waits=up_to({}), runs=up_to(counts))
        for name, counts in runs.items()
    }
    done = Sum(wait=Percentiles(), run=Percentiles(), counts={})
    return Crew(reports=(), labours=labours, sum=done)


def test_percentiles_over_time_are_those_of_what_ended_since() -> None:
    """Workers count from their start on: what is slow now would not show among all they did."""
    before = crew(a={10: 1_000_000}, b={10: 5})
    now = crew(a={10: 1_000_000, 90: 3}, b={10: 5, 40: 97}, new={200: 1_000})
    wait, run = spreads_between(before, now)

    assert wait is None
    assert run == (BOUNDS_US[40] / 1000, BOUNDS_US[90] / 1000)


def test_a_worker_that_was_started_anew_says_nothing_of_before() -> None:
    """Its numbers begin again."""
    wait, run = spreads_between(crew(a={10: 50}), crew(a={20: 5}))

    assert (wait, run) == (None, None)


# Samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"hello",
        b"[]",
        b'{"at_us": "now"}',
        b'{"at_us": 1, "queues": {"a": [1, 2]}}',
        b'{"at_us": 1, "queues": {"a": [-1, 0, 0, 0, 0, 0, 0, 0]}}',
        b'{"at_us": 1, "queues": {"a": [0, 0, 0, 0, 0, 0, 0, 99999999999999999999]}}',
        b'{"at_us": 1, "queues": {"a": [0, 0, 0, 0, 0, 0, 0, 0, 1e400]}}',
        b'{"at_us": 99999999999999999999}',
        b'{"at_us": 1, "gone": [[[[[[]]]]]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_sample_is_told_apart(value: bytes | None) -> None:
    """Anybody may append to a topic."""
    assert sample_of(value) is None


def test_a_sample_is_small_and_comes_back_as_it_was() -> None:
    """Less than a hundred bytes for a queue; and a whole one is known by its first bytes."""
    queues = {
        f"queue-{n:03}": QueueSample(n, 0, 1, 2, 10**6, 10**6, 3, 10**7, 1.5) for n in range(9)
    }
    whole = sample(5, is_whole=True, queues=queues)
    whole.wait_ms, whole.free_bytes = (1.0, 2.5), 10**12
    value = encoded(whole)

    assert sample_of(value) == whole
    assert len(value) < 100 * len(queues) + 200
    assert (is_whole(value), is_whole(encoded(sample(5, queues=queues)))) == (True, False)


def test_a_sample_of_more_than_there_can_be_is_none() -> None:
    """Whatever somebody appends to the topic: one record takes up no more than a real one may."""
    names = [f"queue-{number}" for number in range(QUEUES_SAMPLED_MAX + 1)]
    most = sample(5, queues=dict.fromkeys(names[:-1], numbers()), gone=names[:-1])
    long = "q" * (NAME_CHARACTERS_MAX + 1)
    made_up = [
        sample(5, queues=dict.fromkeys(names, numbers())),
        sample(5, gone=names),
        sample(5, queues={long: numbers()}),
        sample(5, gone=[long]),
    ]

    assert QUEUES_LOOKED_MAX < QUEUES_SAMPLED_MAX
    assert sample_of(encoded(most)) == most
    assert [sample_of(encoded(each)) for each in made_up] == [None] * len(made_up)


def test_more_queues_than_there_can_be_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that always tell of others do not fill the memory; a whole one makes room again."""
    monkeypatch.setattr(history, "KNOWN_MAX", 3)
    past = History()
    past.apply(sample(0, is_whole=True, queues={"real": numbers(1)}))
    for number in range(1, 10):
        past.apply(sample(number, since=number - 1, queues={f"made-up-{number}": numbers(1)}))
    remembered = list(past._known)
    at_most = known(past.of_store(HOUR, at(10)), "ready")[0]
    past.apply(sample(10, since=9, is_whole=True, queues={"real": numbers(1)}))
    past.apply(sample(20, since=10, queues={"new": numbers(1)}))

    assert (remembered, at_most) == (["real", "made-up-1", "made-up-2"], 3)
    assert list(past._known) == ["real", "new"]
    assert known(past.of_store(HOUR, at(20)), "ready")[20] == 2


def picture(number: int, *rows: tuple[str, int]) -> Picture:
    """Return a look at some queues."""
    return Picture(
        number=number,
        at_us=at(10 * number),
        is_whole=True,
        rows=tuple(
            Row(
                name=name,
                standing=Standing(
                    ready=ready,
                    delayed=0,
                    leased=0,
                    dead=0,
                    came=ready,
                    went=0,
                    failed=0,
                    size_bytes=10,
                    oldest_seconds=float(number),
                ),
            )
            for name, ready in rows
        ),
    )


def taken(sampler: Sampler, look: Picture) -> Sample:
    """Return a sample that was taken, and said."""
    found = sampler.sample(look)
    assert found is not None
    sampler.note(found)
    return found


def test_a_sample_has_what_changed_since_the_last_one() -> None:
    """The first has all, and so has one every ten minutes, if anything changed since."""
    sampler = Sampler()
    first = taken(sampler, picture(1, ("a", 1), ("b", 1)))
    nothing = taken(sampler, picture(2, ("a", 1), ("b", 1)))
    changed = taken(sampler, picture(3, ("a", 1), ("b", 2)))
    gone = taken(sampler, picture(4, ("b", 2)))
    later = round(WHOLE_SECONDS / SAMPLE_SECONDS)
    whole = taken(sampler, picture(1 + later, ("b", 2)))
    quiet = taken(sampler, picture(2 + 2 * later, ("b", 2)))

    assert (first.is_whole, list(first.queues), first.since_us) == (True, ["a", "b"], None)
    assert (nothing.has_news, nothing.since_us) == (False, first.at_us)
    assert (changed.is_whole, list(changed.queues)) == (False, ["b"])
    assert (gone.gone, gone.queues, gone.has_news) == (["a"], {}, True)
    assert (whole.is_whole, list(whole.queues)) == (True, ["b"])
    assert (quiet.is_whole, quiet.has_news) == (False, False)


def test_of_many_queues_that_are_gone_at_once_some_are_said_to_be_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sample has more than whoever reads it believes."""
    monkeypatch.setattr(sampling, "QUEUES_SAMPLED_MAX", 2)
    sampler = Sampler()
    taken(sampler, picture(1, ("a", 1), ("b", 1), ("c", 1)))
    said = [taken(sampler, picture(number)).gone for number in (2, 3, 4)]

    assert said == [["a", "b"], ["c"], []]


def test_no_sample_is_taken_before_every_queue_was_looked_at() -> None:
    """Nor of the same look twice: what is not known would be taken for gone."""
    sampler = Sampler()
    look = picture(1, ("a", 1))
    taken(sampler, look)

    assert sampler.sample(look) is None
    assert sampler.sample(Picture(number=2, at_us=at(20), rows=look.rows)) is None


# Recording ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """What of a server has to do with the history, run by hand."""

    store: Store
    historian: Historian
    overlook: Overlook
    clock: ManualClock

    def tick(self, *, seconds: float = SAMPLE_SECONDS) -> None:
        """Let some time pass, and then have it do what it does every ten seconds."""
        self.clock.advance(seconds=seconds)
        self.historian.tick()

    def end(self) -> None:
        """Stop it in order."""
        self.historian._end()
        self.overlook.close()

    @property
    def past(self) -> Points:
        """What it knows of the last hour."""
        return self.historian.history.of_store(HOUR, self.clock())


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock(FIRST_US)


def server(store: Store, clock: ManualClock, *, records: bool = True) -> Server:
    """Return a server of a store that has just begun."""
    queues = OpenQueues(store, lambda _: False)
    looking = Overlook(store, queues, clock=clock, ticks=clock.ticks)
    return Server(store, Historian(store, looking, records=records, clock=clock), looking, clock)


Opening = Callable[[], Store]


@pytest.fixture(params=["directory", "redis"])
def opening(request: pytest.FixtureRequest, scratch: Path, clock: ManualClock) -> Iterator[Opening]:
    """What opens a store, in a directory or on a server."""
    opened: list[Store] = []
    url = f"{shared_server().url}?namespace=test-{scratch.name}"

    def open_it() -> Store:
        if request.param == "directory":
            store: Store = open_directory(scratch, sync="os", clock=clock, ticks=clock.ticks)
        else:
            store = open_redis(url, clock=clock, ticks=clock.ticks)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()
    if request.param == "redis":
        with shared_server().client() as client:
            for key in client.scan_iter(f"test-{scratch.name}:*", count=1_000):
                client.unlink(key)


@pytest.fixture
def store(scratch: Path, clock: ManualClock) -> Iterator[FileStore]:
    """A directory that goes by the clock."""
    with open_directory(scratch / "data", sync="os", clock=clock, ticks=clock.ticks) as store:
        yield store


def recorded(store: Store) -> list[Sample]:
    """Return what was recorded."""
    if HISTORY_TOPIC not in store.topics():
        return []
    found = [sample_of(record.value) for record in store.topic(HISTORY_TOPIC).records()]
    return [each for each in found if each is not None]


def test_the_history_is_there_after_a_restart(opening: Opening, clock: ManualClock) -> None:
    """It is read from the log: nothing of it was only in memory."""
    store = opening()
    first = server(store, clock)
    store.queue("jobs").push(b"x")
    first.tick(seconds=0)
    for _ in range(3):
        store.queue("jobs").push_many([b"x"] * 20)
        first.tick()
    first.tick()
    before = first.past
    first.end()
    store.close()
    second = server(opening(), clock)
    second.historian.catch_up()
    second.overlook.close()

    assert known(before, "in_per_second") == {0: 2.0, 10: 2.0, 20: 2.0, 30: 0.0}
    assert known(before, "ready") == {0: 1, 10: 21, 20: 41, 30: 61, 40: 61}
    for column in ("ready", "in_per_second", "out_per_second", "oldest_seconds", "size_bytes"):
        assert known(second.past, column) == known(before, column), column
    queue = second.historian.history.of_queue("jobs", HOUR, clock())
    assert known(queue, "in_per_second") == known(before, "in_per_second")


def test_of_several_servers_one_records(opening: Opening, clock: ManualClock) -> None:
    """The others see what it records; when it ends the next takes over."""
    stores = opening(), opening()
    one, other = (server(store, clock) for store in stores)
    for number in range(3):
        stores[0].queue("jobs").push_many([b"x"] * 10)
        one.tick()
        other.tick(seconds=1)
        assert len(recorded(stores[0])) == number + 1
    followed = known(other.past, "ready")
    one.end()
    stores[0].queue("jobs").push(b"x")
    other.tick()
    other.end()
    last = recorded(stores[0])[-1]

    assert set(followed.values()) == {10, 20, 30}
    assert (last.is_whole, last.queues["jobs"].ready) == (True, 31)


def test_a_server_that_fell_silent_is_taken_over_from(opening: Opening, clock: ManualClock) -> None:
    """Its lock ends by itself; it finds out when it comes back, and writes nothing."""
    stores = opening(), opening()
    one, other = (server(store, clock) for store in stores)
    stores[0].queue("jobs").push(b"x")
    one.tick()
    clock.advance(seconds=historian.LOCK_SECONDS + 1)
    other.tick()
    stores[0].queue("jobs").push(b"x")
    one.tick()
    by_one = len(recorded(stores[0]))
    other.tick()

    assert by_one == 2
    assert [each.queues["jobs"].ready for each in recorded(stores[0])] == [1, 1, 2]
    one.overlook.close()
    other.end()


def test_nothing_is_recorded_while_nothing_happens(store: FileStore, clock: ManualClock) -> None:
    """An idle store does not grow; that it was idle, and not its server down, is known later."""
    first = server(store, clock)
    store.queue("jobs").push(b"x")
    for _ in range(30):
        first.tick()
    while_idle = len(recorded(store))
    first.end()
    clock.advance(seconds=600)
    second = server(store, clock)
    second.historian.catch_up()
    second.overlook.close()
    ready = known(second.past, "ready")

    assert while_idle == 1
    assert ready == dict.fromkeys(range(10, 310, 10), 1)


def test_an_empty_store_has_an_empty_history_and_no_topic(
    store: FileStore, clock: ManualClock
) -> None:
    """What is recorded begins with the first queue, and all is known from then on."""
    there = server(store, clock)
    there.tick()
    there.tick()
    topics = store.topics()
    store.queue("jobs").push(b"x")
    there.tick()
    there.end()

    assert topics == []
    assert known(there.past, "ready") == {10: 0, 20: 0, 30: 1}
    assert [each.is_whole for each in recorded(store)] == [True]


def test_the_topic_is_kept_for_days_and_within_bounds(store: FileStore, clock: ManualClock) -> None:
    """And in segments, so that what is old can go."""
    there = server(store, clock)
    store.queue("jobs").push(b"x")
    there.tick()
    there.end()
    topic = store.topic(HISTORY_TOPIC)

    assert (topic.partitions, topic.rules) == (1, RULES)
    assert topic.rules.cleans_on_roll
    assert topic.rules.segment_seconds is not None


def test_what_others_append_to_the_topic_is_passed_over(
    store: FileStore, clock: ManualClock
) -> None:
    """Whatever it is: the history goes on before and behind it."""
    first = server(store, clock)
    store.queue("jobs").push(b"x")
    first.tick()
    topic = store.topic(HISTORY_TOPIC)
    topic.append(b"\xff\x00 no sample")
    topic.append(None, key="tombstone")
    topic.append(json.dumps({"at_us": clock() + 10 * HOUR * SECOND_US}).encode())
    topic.append(json.dumps({"at_us": 1, "queues": {"jobs": [7] * 8}}).encode())
    store.queue("jobs").push(b"x")
    first.tick()
    first.end()
    second = server(store, clock)
    second.historian.catch_up()
    second.overlook.close()

    for each in (first, second):
        assert known(each.past, "ready") == {10: 1, 20: 2}


def three_samples(root: Path, clock: ManualClock) -> list[Path]:
    """Record 1, 2 and 3 messages in a queue, a segment each; return the segments."""
    with open_directory(root, sync="os", clock=clock, ticks=clock.ticks) as store:
        first = server(store, clock)
        for _ in range(3):
            store.queue("jobs").push(b"x")
            first.tick()
            store.topic(HISTORY_TOPIC).roll()
        first.end()
    return sorted((root / "topics" / HISTORY_TOPIC / "partition_0").glob("*.q"))


@pytest.mark.parametrize("is_segment", [False, True], ids=["sample", "segment"])
def test_damage_is_passed_over_and_recording_goes_on(
    scratch: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, is_segment: bool
) -> None:
    """A flipped bit costs one sample, a segment that is lost what follows until now; no more."""
    damaged = three_samples(scratch, clock)[1]
    data = bytearray(damaged.read_bytes())
    if is_segment:
        data = bytearray(len(data))
    else:
        data[data.index(b'"queues"')] ^= 1
    damaged.write_bytes(data)
    with open_directory(scratch, sync="os", clock=clock, ticks=clock.ticks) as store:
        there = server(store, clock)
        there.historian.catch_up()
        read = known(there.past, "ready")
        for _ in range(2):
            store.queue("jobs").push(b"x")
            there.tick()
        there.end()
        new = [sample_of(record.value) for record in store.topic(HISTORY_TOPIC).records(3)]

    assert (read[10], read.get(30)) == (1, None if is_segment else 3)
    assert [known(there.past, "ready")[each] for each in (40, 50)] == [4, 5]
    assert [each.queues["jobs"].ready for each in new if each is not None] == [4, 5]
    assert caplog.text.count("damage in the history") == 1


def test_what_cannot_be_read_does_not_keep_a_server_from_recording(
    store: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of, once what is seen is recorded."""
    there = server(store, clock)
    store.queue("jobs").push(b"x")
    there.tick()

    def fail(*_: object, **__: object) -> None:
        raise StorageError("Input/output error")

    store.queue("jobs").push(b"x")
    with monkeypatch.context() as failing:
        failing.setattr(FileTopic, "records", fail)
        with pytest.raises(StorageError):
            there.tick()
    there.end()

    assert [each.queues["jobs"].ready for each in recorded(store)] == [1, 2]


def test_what_could_not_be_recorded_is_recorded_the_next_time(
    store: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the moment, and not what happened in it."""
    there = server(store, clock)
    store.queue("jobs").push(b"x")
    there.tick()
    real = FileTopic.append

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    store.queue("jobs").push_many([b"x"] * 20)
    monkeypatch.setattr(FileTopic, "append", fail)
    with pytest.raises(StorageError):
        there.tick()
    monkeypatch.setattr(FileTopic, "append", real)
    there.tick()
    there.end()
    second = server(store, clock)
    second.historian.catch_up()
    second.overlook.close()

    assert [each.queues["jobs"].ready for each in recorded(store)] == [1, 21]
    assert known(second.past, "in_per_second") == {10: 1.0, 20: 1.0}
    assert known(there.past, "ready") == {10: 1, 20: 21, 30: 21}


def test_a_server_that_does_not_record_keeps_what_it_sees_to_itself(
    store: FileStore, clock: ManualClock
) -> None:
    """A dashboard on a directory that nobody serves has a history from when it is opened on."""
    there = server(store, clock, records=False)
    store.queue("jobs").push(b"x")
    for _ in range(3):
        there.tick(seconds=2 * SAMPLE_SECONDS)
    there.end()

    assert store.topics() == store.locks() == []
    assert known(there.past, "ready") == dict.fromkeys(range(20, 70, 10), 1)


def test_of_what_is_long_ago_only_whole_samples_are_read(
    store: FileStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points are far apart there; what came in between counts, and what came last is not lost."""
    there = server(store, clock)
    for _ in range(200):
        store.queue("jobs").push_many([b"x"] * 10)
        there.tick()
    there.end()
    clock.advance(seconds=2 * 86_400)
    second = server(store, clock)
    applied = 0
    real = second.historian.history.apply

    def count(each: Sample) -> None:
        nonlocal applied
        applied += 1
        real(each)

    monkeypatch.setattr(second.historian.history, "apply", count)
    second.historian.catch_up()
    second.overlook.close()
    week = second.historian.history.of_store(7 * 86_400, clock())

    assert known(week, "in_per_second") == {0: 1.0, 1_800: 1.0}
    assert known(week, "ready")[1_800] == 2_000
    assert applied < 30


# Over HTTP ---------------------------------------------------------------------------------------


@contextmanager
def served(
    root: Path, clock: ManualClock, tokens: Path | None = None, *, records: bool = False
) -> Iterator[Place]:
    """Serve a directory whose history is kept by hand."""
    http = shared_http_server()
    with open_directory(root, sync="os", clock=clock, ticks=clock.ticks) as store:
        app = build_app(
            store,
            tokens=tokens,
            has_audit=False,
            records_history=records,
            clock=clock,
            ticks=clock.ticks,
        )
        url = http.add(app)
        try:
            yield Place(store, app, url)
        finally:
            http.remove(url)


def told(place: Place, query: str = "", **headers: str) -> dict[str, Any]:
    """Return what is told of the past."""
    answer = place.ask("GET", HISTORY + query, **headers)
    assert answer.status == 200, answer.data
    return answer.json


def test_the_history_is_told_in_columns_of_one_length(scratch: Path, clock: ManualClock) -> None:
    """Of the store with all there is, of a queue without what only the store has."""
    with served(scratch, clock, records=True) as place:
        place.store.queue("jobs").push_many([b"x"] * 3)
        clock.advance(seconds=10)
        place.app.historian.tick()
        store = told(place, "?seconds=600")
        queue = told(place, "?queue=jobs&seconds=600")
        unknown = told(place, "?queue=nobody")
        queues = place.store.queues()

    columns = {name: values for name, values in store.items() if isinstance(values, list)}
    assert {len(values) for values in columns.values()} == {60}
    assert (store["queue"], queue["queue"], store["step_seconds"]) == (None, "jobs", 10.0)
    assert (store["ready"][-1], type(store["ready"][-1])) == (3, int)
    assert store["free_bytes"][-1] > 0
    assert queue["ready"][-1] == 3
    assert set(queue["free_bytes"]) == set(queue["wait_p99_ms"]) == {None}
    assert {len(values) for values in columns.values()} == {60}
    assert set(unknown["ready"]) == {None}
    assert queues == ["jobs"]


@pytest.mark.parametrize("query", ["seconds=59", "seconds=604801", "seconds=x", "since=1"])
def test_a_span_that_makes_no_sense_is_refused(
    scratch: Path, clock: ManualClock, query: str
) -> None:
    with served(scratch, clock) as place:
        answer = place.ask("GET", f"{HISTORY}?{query}")

    assert (answer.status, answer.code) == (400, "invalid_argument")


def test_a_token_sees_the_past_of_what_it_is_for(scratch: Path, clock: ManualClock) -> None:
    """Its own queues together, and none of the others by name."""
    tokens = scratch / "tokens.json"
    _, text = new_token(tokens, "read", names=("mine-*",))
    with served(scratch / "data", clock, tokens) as place:
        for name, count in (("mine-a", 1), ("mine-b", 2), ("theirs", 400)):
            place.store.queue(name).push_many([b"x"] * count)
        place.app.historian.tick()
        mine = told(place, authorization=text)
        one = told(place, "?queue=mine-b", authorization=text)
        refused = place.ask("GET", f"{HISTORY}?queue=theirs", authorization=text)

    assert (mine["ready"][-1], one["ready"][-1]) == (3, 2)
    assert set(mine["free_bytes"]) == {None}
    assert (refused.status, refused.code) == (403, "access_denied")


def test_a_real_server_records_and_the_next_one_tells_of_it(scratch: Path) -> None:
    """From its start on, asked or not; who asks is answered while it reads."""
    with open_directory(scratch, sync="os") as store:
        store.queue("jobs").push(b"x")
        with ServerThread(build_app(store, has_audit=False, records_history=True)):
            until(lambda: len(recorded(store)) == 1)
        locks = store.lock(HISTORY_TOPIC).holder()
        with ServerThread(build_app(store, has_audit=False)) as server:
            place = Place(store, server.app, server.url)
            until(lambda: 1 in told(place)["ready"])
            samples = len(recorded(store))

    assert locks is None
    assert samples == 1


def test_a_server_that_does_not_record_rests_when_nobody_asks(
    scratch: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the store for whoever looks at it, and goes on when somebody does again."""
    monkeypatch.setattr(historian, "SAMPLE_SECONDS", 0.01)
    with served(scratch, clock) as place:
        keeper = place.app.historian
        keeper.begin()
        before = keeper._thread
        told(place)
        until(lambda: keeper._thread is not None)
        clock.advance(seconds=historian.UNASKED_SECONDS + 1)
        until(lambda: keeper._thread is None)
        told(place)
        until(lambda: keeper._thread is not None)

    assert before is None
