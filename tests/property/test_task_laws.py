"""Laws of tasks: whatever is given comes out, and whatever happens goes by the table."""

import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, Literal
from uuid import UUID

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from segue.delivery.priority import NAMES, PriorityName
from segue.delivery.retry import Backoff
from segue.errors import BadArguments, BadResult, SegueError
from segue.stores.opening import open as open_store
from segue.tasks import App, GiveUp, State, TaskRecord, Worker, current
from segue.tasks.envelope import Envelope, read_envelope, write_envelope
from segue.tasks.events import EventLog, Happening, TaskEvent, read_event, write_event
from segue.tasks.index import TaskIndex
from segue.tasks.signature import Signature
from segue.tasks.states import TERMINAL, TRANSITIONS, may_follow
from segue.testing import ManualClock
from segue.testing.clock import START_US
from tests.contract.task_support import AT_ONCE, manual_app

# Values ------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


class Everything(msgspec.Struct, frozen=True):
    number: int
    exact: Decimal
    text: str
    data: bytes
    moment: datetime
    name: UUID
    maybe: float | None
    many: tuple[int, ...]
    by_name: dict[str, bytes]


everything = st.builds(
    Everything,
    number=st.integers(),
    exact=st.decimals(allow_nan=False, allow_infinity=False),
    text=texts,
    data=st.binary(max_size=50),
    moment=st.datetimes(timezones=st.just(UTC)),
    name=st.uuids(),
    maybe=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    many=st.lists(st.integers(), max_size=4).map(tuple),
    by_name=st.dictionaries(texts, st.binary(max_size=9), max_size=3),
)


def typed(
    first: Everything, /, second: bytes, *rest: Decimal, named: int = 3, **others: Everything
) -> None:
    """Have a parameter of each kind."""


def loose() -> Callable[..., object]:
    return lambda *args, **kwargs: (args, kwargs)


@given(plain, st.lists(plain, max_size=3), st.dictionaries(texts.filter(bool), plain, max_size=3))
def test_plain_json_comes_out_as_it_was(
    value: object, args: list[object], kwargs: dict[str, object]
) -> None:
    """Arguments and results without annotations."""
    signature = Signature(loose(), "task")
    found = signature.read(signature.write((value, *args), kwargs))

    assert found == ((value, *args), kwargs)
    assert signature.read_result(signature.write_result(value)) == value


@given(
    everything,
    st.binary(max_size=20),
    st.lists(st.decimals(allow_nan=False, allow_infinity=False), max_size=3),
    st.none() | st.integers(),
    st.dictionaries(st.sampled_from(["a", "first", "self", "x y"]), everything, max_size=2),
)
def test_typed_arguments_come_out_as_they_were(
    first: Everything,
    second: bytes,
    rest: list[Decimal],
    named: int | None,
    others: dict[str, Everything],
) -> None:
    """By every kind of parameter."""
    given_names: dict[str, object] = dict(others) if named is None else {"named": named, **others}
    signature = Signature(typed, "task")
    args, kwargs = signature.read(signature.write((first, second, *rest), given_names))

    assert args == (first, second, *rest)
    assert kwargs == {"named": 3 if named is None else named, **others}


anything = st.recursive(
    plain
    | st.binary(max_size=5)
    | st.floats()
    | st.text(max_size=5)
    | st.decimals()
    | st.frozensets(st.integers(), max_size=2)
    | st.complex_numbers()
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers() | texts, inner, max_size=3)
    ),
    max_leaves=6,
)


def as_json(value: object) -> object:
    """Return what plain JSON makes of a value: tuples are lists."""
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    return value


@given(anything)
def test_what_is_not_refused_comes_out_as_it_was(value: object) -> None:
    """There is no third way: nothing becomes something else on its way."""
    signature = Signature(lambda value: value, "task")
    try:
        written = signature.write((value,), {})
    except BadArguments:
        return
    _, named = signature.read(written)

    assert named == {"value": as_json(value)}


@given(st.none() | st.floats(), st.floats() | st.none())
@example(value=float("nan"), other=float("inf"))
def test_a_number_is_refused_or_comes_out_as_it_was(
    value: float | None, other: float | None
) -> None:
    """Also where None would do."""

    def function(value: float | None) -> float | None:
        return value

    signature = Signature(function, "task")
    try:
        found: object = signature.read(signature.write((value,), {}))[1]["value"]
    except BadArguments:
        found = value if value is not None and value - value != 0 else "refused for nothing"
    try:
        result: object = signature.read_result(signature.write_result(other))
    except BadResult:
        result = other

    assert found == value or (found != found and value != value)  # noqa: PLR0124 - NaN
    assert result == other or (result != result and other != other)  # noqa: PLR0124 - as above


@given(st.binary(max_size=200))
@example(b'{"first":')
@example(b"[" * 2_000)
def test_whatever_a_message_says_is_a_call_or_bad_arguments(data: bytes) -> None:
    """Anybody may write to a queue."""
    try:
        Signature(typed, "task").read(data)
    except BadArguments:
        return


@given(st.binary(max_size=200) | plain.map(msgspec.json.encode))
@example(b'{"task":"x","retries":-1}')
@example(b'{"task":"x","timeout":0}')
def test_whatever_a_message_holds_is_a_task_or_none(body: bytes) -> None:
    """And nothing else: no worker may die of it."""
    try:
        envelope = read_envelope(body)
    except SegueError:
        return

    assert read_envelope(write_envelope(envelope)) == envelope


@given(
    texts,
    plain,
    st.none() | st.integers(0, 1_000),
    st.none() | st.floats(0.001, 1e6),
    st.none() | texts,
)
def test_an_envelope_comes_out_as_it_was(
    task: str, args: object, retries: int | None, timeout: float | None, schedule: str | None
) -> None:
    """Whatever a call has of its own."""
    raw = msgspec.Raw(msgspec.json.encode(args))
    found = read_envelope(write_envelope(Envelope(task, raw, retries, timeout, schedule)))

    assert (found.task, found.retries, found.timeout) == (task, retries, timeout)
    assert found.schedule == schedule
    assert msgspec.json.decode(found.args) == args


# Backoff -----------------------------------------------------------------------------------


@given(st.integers(0, 10**9), st.floats(0, 1), st.integers())
@example(failures=0, jitter=0.0, seed=0)
@example(failures=10**9, jitter=1.0, seed=0)
def test_a_wait_is_a_second_doubled_each_time_up_to_five_minutes_give_or_take_its_jitter(
    failures: int, jitter: float, seed: int
) -> None:
    """The formula, for any count: it neither overflows nor goes below nothing."""
    exact_us = min(1_000_000 * 2 ** min(failures, 40), 300_000_000)
    delay_us = Backoff(jitter=jitter).delay_us(failures, Random(seed))

    assert round(exact_us * (1 - jitter)) - 1 <= delay_us <= round(exact_us * (1 + jitter)) + 1
    assert Backoff(jitter=0).delay_us(failures, Random(seed)) == exact_us


# States ------------------------------------------------------------------------------------

Fate = Literal["ok", "fail", "fail_once", "give_up", "bad_result", "cancel", "later", "expire"]
FATES: Final[tuple[Fate, ...]] = (
    "ok",
    "fail",
    "fail_once",
    "give_up",
    "bad_result",
    "cancel",
    "later",
    "expire",
)
PRIORITIES: Final[tuple[PriorityName, ...]] = ("critical", "high", "normal", "low")
fates = st.lists(
    st.tuples(st.sampled_from(FATES), st.sampled_from(PRIORITIES), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)
ENDS: Final[dict[Fate, State]] = {
    "ok": State.COMPLETED,
    "fail": State.DEAD_LETTER,
    "give_up": State.DEAD_LETTER,
    "bad_result": State.DEAD_LETTER,
    "cancel": State.CANCELLED,
    "later": State.COMPLETED,
    "expire": State.DEAD_LETTER,
}


def declare(app: App, ran: list[tuple[int, int]]) -> Callable[[int, Fate, PriorityName, int], str]:
    """Give an App a task that does what it is told, and return how to queue one."""

    @app.task(backoff=AT_ONCE)
    def job(number: int, fate: str) -> int:
        ran.append((number, current().attempt))
        if fate == "fail" or (fate == "fail_once" and current().attempt == 1):
            raise ValueError(fate)
        if fate == "give_up":
            raise GiveUp(fate)
        value: object = "no number" if fate == "bad_result" else number
        return value  # type: ignore[return-value]

    def queue(number: int, fate: Fate, priority: PriorityName, retries: int) -> str:
        call = job.using(
            priority=priority,
            retries=retries,
            delay=5 if fate == "later" else None,
            ttl=1 if fate == "expire" else None,
        )
        result = call.enqueue(number, fate)
        if fate == "cancel":
            result.cancel()
        return result.id

    return queue


@settings(max_examples=15)
@given(fates, st.integers(1, 3))
def test_every_task_comes_to_its_end_and_by_the_table(
    plans: list[tuple[Fate, PriorityName, int]], size: int
) -> None:
    """Each transition of random runs is in the table; each task has the end it should."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    clock = ManualClock()
    ran: list[tuple[int, int]] = []
    try:
        with manual_app(root, clock) as app:
            queue = declare(app, ran)
            ids = [queue(number, *plan) for number, plan in enumerate(plans)]
            starts = [app.record(task_id).state for task_id in ids]
            clock.advance(seconds=6)
            Worker(app, burst=True, min_size=size).run()
            seen: dict[str, list[State]] = dict(zip(ids, ([each] for each in starts), strict=True))
            for _, event in app.log.read(0):
                # A short run is said to have been: each of these ends one.
                seen[event.id] += [State.PROCESSING, State(event.happened)]
            records = [app.record(task_id) for task_id in ids]
    finally:
        shutil.rmtree(root)

    for number, ((fate, _, retries), record) in enumerate(zip(plans, records, strict=True)):
        states = seen[record.id]
        if fate not in ("cancel", "expire"):
            assert all(may_follow(*each) for each in pairwise(states)), states
            assert states[-1] is record.state
        once = State.COMPLETED if retries else State.DEAD_LETTER
        assert record.state is (once if fate == "fail_once" else ENDS[fate]), fate
        tries = [attempt for each, attempt in ran if each == number]
        wanted = {"fail": retries + 1, "fail_once": min(retries, 1) + 1}.get(fate, 1)
        assert tries == list(range(1, 1 if fate in ("cancel", "expire") else wanted + 1))


@settings(max_examples=12)
@given(st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=30))
def test_one_worker_runs_tasks_by_priority_and_then_as_they_came(
    priorities: list[PriorityName],
) -> None:
    """The same order as sorting a list, which keeps equals in theirs."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    ran: list[tuple[int, int]] = []
    try:
        with manual_app(root, ManualClock()) as app:
            queue = declare(app, ran)
            for number, priority in enumerate(priorities):
                queue(number, "ok", priority, 0)
            Worker(app, burst=True).run()
    finally:
        shutil.rmtree(root)

    order = sorted(range(len(priorities)), key=lambda number: NAMES[priorities[number]])
    assert [number for number, _ in ran] == order


def test_the_table_leads_everywhere_and_out_of_everything_but_the_end() -> None:
    """Every state can be reached from the first, and from every one an end can be."""

    def reach(start: State) -> set[State]:
        found, todo = {start}, [start]
        while todo:
            for after in TRANSITIONS[todo.pop()] - found:
                found.add(after)
                todo.append(after)
        return found

    assert reach(State.SCHEDULED) == set(State)
    assert all(reach(state) & TERMINAL for state in State)


# Events and the index ----------------------------------------------------------------------

HAPPENINGS: Final[tuple[Happening, ...]] = (
    "processing",
    "completed",
    "retrying",
    "dead_letter",
    "cancelled",
    "pending",
    "lost",
)
events = st.lists(
    st.builds(
        TaskEvent,
        id=st.integers(0, 3).map(lambda number: f"default/2-{number}"),
        happened=st.sampled_from(HAPPENINGS),
        at_us=st.integers(0, 10**6).map(lambda us: START_US + us),
        task=st.sampled_from(["a", "b"]),
        attempt=st.integers(1, 3),
        worker=st.sampled_from(["w", "v"]),
        error=texts,
        expires_us=st.just(START_US + 10**12),
    ),
    max_size=30,
)


@given(events)
def test_an_event_is_read_as_it_was_written(written: list[TaskEvent]) -> None:
    """Whatever it says."""
    for event in written:
        value = write_event(event).value
        assert isinstance(value, bytes)
        assert read_event(value) == event


def by_hand(happened: list[TaskEvent]) -> dict[str, tuple[State, int, str]]:
    """Return what an index should say of events, in as few words as can be."""
    known: dict[str, TaskEvent] = {}
    states: dict[str, State] = {}
    for event in happened:
        last = known.get(event.id)
        if event.happened == "lost":
            if last is not None and (last.attempt, last.worker) == (event.attempt, event.worker):
                states[event.id] = State.RETRYING
        elif last is None or event.attempt >= last.attempt:
            known[event.id], states[event.id] = event, State(event.happened)
    return {key: (states[key], event.attempt, event.error) for key, event in known.items()}


def told(records: list[TaskRecord]) -> dict[str, tuple[State, int, str]]:
    return {record.id: (record.state, record.attempt, record.error) for record in records}


@settings(max_examples=30)
@given(events, st.lists(st.integers(0, 30), max_size=4))
def test_the_index_is_the_sum_of_the_events_however_it_came_to_know_them(
    happened: list[TaskEvent], cuts: list[int]
) -> None:
    """Read one by one, in steps, or all at once after it was deleted: the answer is the same."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    clock = ManualClock()
    try:
        with open_store(root / "data", sync="os", clock=clock) as store:
            log = EventLog(store)
            log.prepare(10**6)
            stepwise = TaskIndex(log, root / "steps.sqlite3", clock)
            bounds = sorted({0, *(min(cut, len(happened)) for cut in cuts), len(happened)})
            for start, stop in pairwise(bounds):
                log.append(happened[start:stop])
                stepwise.catch_up()
            at_once = TaskIndex(log, None, clock)
            found = told(stepwise.find(limit=100)), told(at_once.find(limit=100))
            stepwise.close()
            at_once.close()
    finally:
        shutil.rmtree(root)

    assert found[0] == found[1] == by_hand(happened)
