"""Lists of tasks by page, counts, and what happened to one: the same wherever tasks are kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.tasks import App, State, tally
from tests.contract.task_support import TASK_WORLDS, TaskWorld, manual_app, url_of, work


@pytest.fixture(params=list(TASK_WORLDS.values()), ids=list(TASK_WORLDS))
def world(request: pytest.FixtureRequest, scratch: Path) -> Iterator[TaskWorld]:
    """Where the store is; intact when the test is over."""
    world: TaskWorld = request.param(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def app(world: TaskWorld) -> Iterator[App]:
    """An App, on the clock of its world."""
    with manual_app(url_of(world), world.clock) as app:
        yield app


def test_tasks_are_listed_page_by_page_and_counted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them once, whatever its state; as many as the counts say."""
    monkeypatch.setattr(tally, "LOOK_SECONDS", 3_600.0)

    @app.task(retries=0)
    def bad() -> None:
        raise ValueError("no")

    @app.task
    def good() -> None: ...

    expected = {
        State.DEAD_LETTER: [bad.enqueue().id for _ in range(4)],
        State.COMPLETED: [good.enqueue().id for _ in range(4)],
    }
    work(app)
    expected[State.PENDING] = [good.enqueue().id for _ in range(4)]
    expected[State.SCHEDULED] = [good.using(delay=60).enqueue().id for _ in range(4)]
    expected[State.CANCELLED] = [good.enqueue().id]
    app.desk.cancel(expected[State.CANCELLED][0])
    app.store.queue("plain").push(b"no task")

    def listed(*states: State) -> list[str]:
        found: list[str] = []
        after: str | None = None
        for _ in range(50):
            page, after = app.desk.page(states=states, limit=3, after=after)
            found += [each.id for each in page]
            if after is None:
                return found
        raise AssertionError("a list without an end")

    assert sorted(listed()) == sorted(each for some in expected.values() for each in some)
    for state, task_ids in expected.items():
        assert sorted(listed(state)) == sorted(task_ids), state
    assert listed(State.COMPLETED, State.CANCELLED)[0] == expected[State.CANCELLED][0]
    counts = app.desk.counts().states
    assert {state: count for state, count in counts.items() if count} == {
        State.PENDING: 5,  # The one that is to be cancelled is still among them.
        State.SCHEDULED: 4,
        State.COMPLETED: 4,
        State.DEAD_LETTER: 4,
    }


def test_a_dead_task_is_found_and_brought_back_among_others(app: App) -> None:
    """Whichever it is; its events stay."""

    @app.task(retries=0)
    def bad(number: int) -> None:
        raise ValueError(f"number {number}")

    dead = [bad.enqueue(number).id for number in range(9)]
    work(app)

    assert [app.desk.record(task_id).state for task_id in dead] == [State.DEAD_LETTER] * 9
    assert app.desk.retry(dead[6])
    assert not app.desk.retry(dead[6])
    work(app)
    events, is_whole = app.desk.events(dead[6])
    assert [(each.happened, each.attempt, each.error) for each in events] == [
        ("dead_letter", 1, "ValueError: number 6"),
        ("dead_letter", 2, "ValueError: number 6"),
    ]
    assert is_whole
