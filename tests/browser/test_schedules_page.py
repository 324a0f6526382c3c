"""The screen of schedules: when each fires next, what it fired last, and firing by hand."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from segue.tasks import State
from segue.tasks.scheduling import ScheduleBook, ScheduleState
from tests.browser.acting import (
    NONE,
    act,
    asked,
    cancel,
    cell,
    changing_nothing,
    expect_told,
    row,
    rows,
)
from tests.browser.browser_support import Dashboard
from tests.browser.working import Studio, studio_in

SCHEDULES = "Schedules"


@pytest.fixture
def studio(dashboard: Dashboard) -> Iterator[Studio]:
    """A worker has been there, and has met the schedule."""
    with studio_in(dashboard.store) as studio:
        studio.work()
        yield studio


def states(dashboard: Dashboard) -> dict[str, ScheduleState]:
    """Return the schedules that the store knows, by name."""
    return {state.name: state for state in ScheduleBook(dashboard.store).states().values()}


def test_a_schedule_shows_when_it_fires_and_what_it_fires(
    dashboard: Dashboard, studio: Studio
) -> None:
    """As the worker that met it noted."""
    page = dashboard.open("/schedules")

    line = row(page, SCHEDULES, "0 3 * * *")
    expect(cell(line, "Schedule")).to_have_text("report")
    expect(cell(line, "Task")).to_have_text("report")
    expect(cell(line, "Queue")).to_have_text("default")
    expect(cell(line, "Next")).to_have_text(re.compile("^in [0-9]+ (h|min|s)"))
    expect(cell(line, "Last")).to_have_text(NONE)
    expect(cell(line, "Fired")).to_have_text("0")
    cell(line, "Task").get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"#/tasks\?task=report$"))
    assert list(states(dashboard)) == ["report"]
    assert studio.app.schedules


def test_a_store_that_no_worker_has_seen_has_no_schedules(dashboard: Dashboard) -> None:
    """And says why."""
    page = dashboard.open("/schedules")

    expect(page.get_by_text("No worker has told of a schedule yet.")).to_be_visible()


def test_a_schedule_is_fired_by_hand(dashboard: Dashboard, studio: Studio) -> None:
    """One task is queued, which a worker runs; when it fires by itself stays as it was."""
    page = dashboard.open("/schedules")
    queue = dashboard.store.queue("default")
    with changing_nothing(page, queue.count):
        cancel(asked(page, "Fire report now", "Fire report now?"))
    before = states(dashboard)["report"]
    dialog = asked(page, "Fire report now", "Fire report now?")
    dialog.get_by_role("button", name="Fire it").click()
    expect(dialog).to_be_hidden()
    expect_told(page, re.compile(r"^report fired: default/\S+ is queued$"))

    assert queue.count().ready == 1
    after = states(dashboard)["report"]
    assert (after.when, after.fired_us) == (before.when, before.fired_us)
    studio.work()
    (record,) = studio.app.desk.find(task="report")
    assert record.state is State.COMPLETED


def test_a_schedule_is_forgotten(dashboard: Dashboard, studio: Studio) -> None:
    """Whoever wants that types its name; a worker whose code has it brings it back."""
    page = dashboard.open("/schedules")
    entry = act(
        dashboard,
        "Forget report",
        title="Forget report?",
        go="Forget it",
        look=lambda: list(states(dashboard)),
        types="report",
        told="report is forgotten",
        does="DELETE /api/v1/schedules/report",
    )

    assert entry.did == '{"removed":true}'
    assert states(dashboard) == {}
    expect(page.get_by_text("No worker has told of a schedule yet.")).to_be_visible()
    studio.work()
    page.keyboard.press("r")
    expect(rows(page, SCHEDULES)).to_have_count(1)


def test_a_schedule_that_is_gone_already_is_told(dashboard: Dashboard, studio: Studio) -> None:
    """Somebody else was faster."""
    page = dashboard.open("/schedules")
    dialog = asked(page, "Forget report", "Forget report?")
    ScheduleBook(studio.app.store).remove("report")
    dialog.get_by_label("to go on").fill("report")
    dialog.get_by_role("button", name="Forget it").click()

    expect_told(page, "report was not there any more")


def test_firing_what_is_gone_is_refused_and_queues_nothing(
    dashboard: Dashboard, studio: Studio
) -> None:
    """The dialog says so."""
    dashboard.complaints.expect("status of 404")
    page = dashboard.open("/schedules")
    dialog = asked(page, "Fire report now", "Fire report now?")
    ScheduleBook(studio.app.store).remove("report")
    dialog.get_by_role("button", name="Fire it").click()

    expect(dialog.get_by_role("alert")).to_contain_text("there is no schedule report")
    assert dashboard.store.queue("default").count().ready == 0
