"""The screens of tasks: those there are by state, one with all that is known, and acts on them."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from segue.tasks import State
from tests.browser.acting import (
    EVERY_MS,
    act,
    asked,
    card,
    cell,
    expect_told,
    fact,
    heading,
    rows,
    table,
)
from tests.browser.browser_support import Dashboard, load, until
from tests.browser.working import WORKER, Studio, studio_in

PAGE = 25


@pytest.fixture
def studio(dashboard: Dashboard) -> Iterator[Studio]:
    """Tasks in the store that is shown."""
    with studio_in(dashboard.store) as studio:
        yield studio


@pytest.fixture
def mixed(studio: Studio) -> Studio:
    """Two tasks that are completed, one dead letter, one pending, one scheduled, one cancelled."""
    studio.enqueue("a.png", "broken.png", "b.png")
    studio.crawl.enqueue("https://example.com").cancel()
    studio.work()
    studio.enqueue("pending.png")
    studio.resize.using(delay=600).enqueue("later.png")
    return studio


def tab(page: Page, text: str) -> Locator:
    return page.get_by_role("navigation", name="State of tasks").get_by_role(
        "link", name=re.compile(f"^{text} [0-9]+$")
    )


def search(page: Page, **said: str) -> None:
    """Fill in the filters, and have those tasks shown that fit."""
    form = page.get_by_role("search")
    for label, text in said.items():
        form.get_by_label(re.compile(f"^{label}", re.IGNORECASE)).fill(text)
    form.get_by_role("button", name="Filter").click()


# Lists -------------------------------------------------------------------------------------------


def test_tasks_are_counted_and_listed_by_state(dashboard: Dashboard, mixed: Studio) -> None:
    """The figures are the store's; each state has an address."""
    page = dashboard.open("/tasks")

    counts = mixed.app.desk.counts().states
    numbers = {State.PENDING: 1, State.SCHEDULED: 1, State.COMPLETED: 2, State.DEAD_LETTER: 1}
    assert {state: count for state, count in counts.items() if count} == {
        **numbers,
        State.CANCELLED: 1,
    }
    expect(tab(page, "all")).to_have_text("all 6")
    expect(rows(page, "Tasks")).to_have_count(6)
    for state, count in counts.items():
        words = state.value.replace("_", " ")
        expect(tab(page, words)).to_have_text(f"{words} {count}")
        tab(page, words).click()
        expect(page).to_have_url(re.compile(f"state={state.value}$"))
        expect(tab(page, words)).to_have_attribute("aria-current", "true")
        if count:
            expect(rows(page, "Tasks")).to_have_count(count)
            expect(cell(rows(page, "Tasks").first, "State")).to_have_text(words)
        else:
            expect(page.get_by_text("No task fits.")).to_be_visible()


def test_a_task_s_row_says_how_it_went(dashboard: Dashboard, mixed: Studio) -> None:
    """Its tries, how long it waited and ran, and its error."""
    page = dashboard.open("/tasks?state=dead_letter")

    line = rows(page, "Tasks")
    expect(cell(line, "Task")).to_have_text("resize")
    expect(cell(line, "Tries")).to_have_text("2")
    expect(cell(line, "Waited")).to_have_text(re.compile("s$"))
    expect(cell(line, "Ran")).to_have_text(re.compile("s$"))
    expect(cell(line, "Error")).to_have_text("ValueError: cannot read image 'broken.png'")
    expect(
        card(page, "By name").get_by_role("row", name=re.compile("^resize 2 0 1 "))
    ).to_be_visible()
    line.get_by_role("link", name="resize").click()
    expect(heading(page, "resize")).to_contain_text("dead letter")
    assert mixed.app.store.queue("default").count().dead == 1


@pytest.mark.parametrize(
    ("said", "count", "address"),
    [
        ({"task": "crawl"}, 1, "task=crawl"),
        ({"task": "nothing"}, 0, "task=nothing"),
        ({"queue": "crawling"}, 1, "queue=crawling"),
        ({"queue": "default"}, 5, "queue=default"),
        ({"error": "CANNOT read"}, 1, "error=CANNOT\\+read"),
        ({"task": "resize", "queue": "default", "error": "broken"}, 1, "error=broken"),
        ({"task": "crawl", "error": "broken"}, 0, "task=crawl"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_tasks_are_found_by_name_queue_and_error(
    dashboard: Dashboard, mixed: Studio, said: dict[str, str], count: int, address: str
) -> None:
    """Together they narrow it down; the address says what was asked for, and leads there."""
    page = dashboard.open("/tasks")
    expect(rows(page, "Tasks")).to_have_count(6)
    search(page, **said)

    expect(page).to_have_url(re.compile(address))
    expect(rows(page, "Tasks")).to_have_count(count)
    if not count:
        expect(page.get_by_text("No task fits.")).to_be_visible()
    there = page.url
    load(page, there)
    for label, text in said.items():
        field = page.get_by_role("search").get_by_label(re.compile(f"^{label}", re.IGNORECASE))
        expect(field).to_have_value(text)
    expect(rows(page, "Tasks")).to_have_count(count)
    search(page, **dict.fromkeys(said, ""))
    expect(page).to_have_url(re.compile("#/tasks$"))
    expect(rows(page, "Tasks")).to_have_count(6)


def test_a_filter_is_kept_when_the_state_changes(dashboard: Dashboard, mixed: Studio) -> None:
    """And goes back with the address."""
    page = dashboard.open("/tasks?queue=default")
    expect(rows(page, "Tasks")).to_have_count(5)
    tab(page, "completed").click()

    expect(page).to_have_url(re.compile(r"#/tasks\?queue=default&state=completed$"))
    expect(rows(page, "Tasks")).to_have_count(2)
    page.go_back()
    expect(rows(page, "Tasks")).to_have_count(5)
    table(page, "Tasks by name").get_by_role("link", name="resize").click()
    expect(page).to_have_url(re.compile("task=resize"))


def test_tasks_are_paged_and_the_way_back_is_the_way_there(
    dashboard: Dashboard, studio: Studio
) -> None:
    """Each once: those that wait first, then the finished, the latest first."""
    studio.enqueue(*(f"{number}.png" for number in range(PAGE - 5)))
    studio.work()
    studio.enqueue(*(f"{number}.png" for number in range(PAGE)))
    page = dashboard.open("/tasks")
    pages = page.get_by_role("navigation", name="Pages")
    lines = rows(page, "Tasks")

    expect(tab(page, "all")).to_have_text(f"all {2 * PAGE - 5}")
    expect(lines).to_have_count(PAGE)
    expect(cell(lines.last, "State")).to_have_text("pending")
    pages.get_by_role("link", name="Next").click()
    expect(pages).to_contain_text("page 2")
    expect(lines).to_have_count(PAGE - 5)
    expect(cell(lines.first, "State")).to_have_text("completed")
    expect(pages.get_by_role("link", name="Next")).to_have_count(0)
    pages.get_by_role("link", name="Back").click()
    expect(pages).to_contain_text("page 1")
    expect(cell(lines.first, "State")).to_have_text("pending")
    page.go_back()
    expect(cell(lines.first, "State")).to_have_text("completed")


def test_a_store_without_tasks_says_so(dashboard: Dashboard) -> None:
    """Messages that are no tasks are none."""
    dashboard.store.queue("mail").push(b"no task")
    page = dashboard.open("/tasks")

    expect(page.get_by_text("There are no tasks yet.")).to_be_visible()
    expect(tab(page, "all")).to_have_text("all 0")


def test_tasks_that_end_meanwhile_change_on_the_page(dashboard: Dashboard, studio: Studio) -> None:
    """Nobody has to ask for it anew."""
    studio.enqueue("a.png")
    dashboard.page.clock.install()
    page = dashboard.open("/tasks")
    expect(cell(rows(page, "Tasks"), "State")).to_have_text("pending")
    studio.work()
    page.clock.run_for(EVERY_MS)

    expect(cell(rows(page, "Tasks"), "State")).to_have_text("completed")
    expect(tab(page, "completed")).to_have_text("completed 1")


# One task ----------------------------------------------------------------------------------------


def steps(page: Page) -> Locator:
    """Return what happened to a task; that it was started is told only if it takes a while."""
    found = card(page, "What happened").get_by_role("list").get_by_role("listitem")
    return found.filter(has_not_text=re.compile("^Started"))


def test_a_completed_task_shows_what_it_was_given_and_what_came_of_it(
    dashboard: Dashboard, studio: Studio
) -> None:
    """And when, and who ran it."""
    (task_id,) = studio.enqueue("a.png")
    studio.work()
    page = dashboard.open(f"/tasks/{task_id}")

    expect(heading(page, "resize")).to_contain_text("completed")
    standing = card(page, "How it stands")
    expect(fact(standing, "Id")).to_have_text(task_id)
    expect(fact(standing, "Tries")).to_have_text("1")
    expect(fact(standing, "Worker")).to_have_text(WORKER)
    expect(fact(standing, "Ran")).to_have_text(re.compile("s$"))
    expect(card(page, "Arguments").locator("pre")).to_have_text('{\n  "path": "a.png"\n}')
    expect(card(page, "Result").locator("pre")).to_have_text('"a.png at 100"')
    expect(steps(page)).to_have_count(2)
    expect(steps(page).nth(0)).to_contain_text("Pushed")
    expect(steps(page).nth(1)).to_contain_text(f"Completed by {WORKER}, attempt 1")
    expect(page.get_by_role("button", name=re.compile("Retry|Cancel"))).to_have_count(0)
    page.get_by_role("link", name="As a message").click()
    expect(page).to_have_url(re.compile(f"#/queues/default/messages/{task_id.partition('/')[2]}$"))


def test_a_dead_task_shows_every_try_and_its_traceback(
    dashboard: Dashboard, studio: Studio
) -> None:
    """In the order in which they were made."""
    (task_id,) = studio.enqueue("broken.png")
    studio.work()
    page = dashboard.open(f"/tasks/{task_id}")

    expect(heading(page, "resize")).to_contain_text("dead letter")
    expect(card(page, "Error")).to_contain_text("ValueError: cannot read image 'broken.png'")
    expect(card(page, "Error").locator("pre")).to_contain_text("Traceback (most recent call last)")
    expect(steps(page)).to_have_count(3)
    expect(steps(page).nth(1)).to_contain_text(f"Failed, to be tried again by {WORKER}, attempt 1")
    expect(steps(page).nth(2)).to_contain_text(f"Failed for good by {WORKER}, attempt 2")
    expect(steps(page).nth(2).locator("pre")).to_be_hidden()
    steps(page).nth(2).get_by_text("Traceback", exact=True).click()
    expect(steps(page).nth(2).locator("pre")).to_contain_text("raise ValueError")


def test_a_task_that_runs_shows_how_far_it_is(dashboard: Dashboard, studio: Studio) -> None:
    """Who runs it; and once it is done, what came of it, without a new look."""
    task_id = studio.crawl.enqueue("https://example.com").id
    with studio.working():
        page = dashboard.open(f"/tasks/{task_id}")

        expect(heading(page, "crawl")).to_contain_text("processing")
        expect(card(page, "Progress").locator("pre")).to_contain_text('"done": 3')
        expect(fact(card(page, "How it stands"), "Worker")).to_have_text(WORKER)
        expect(card(page, "What happened").get_by_text('"done":3').first).to_be_visible()
        studio.may_end.set()
        expect(heading(page, "crawl")).to_contain_text("completed")
        expect(card(page, "Result").locator("pre")).to_have_text('"all of https://example.com"')


def test_a_task_that_does_not_exist_is_told_to_be_none(dashboard: Dashboard) -> None:
    """Whoever mistypes an id learns so."""
    dashboard.complaints.expect("status of 404")
    page = dashboard.open("/tasks/default/9-9")

    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("That did not work")
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("task_not_found")


# Acts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["list", "task"])
def test_a_dead_task_is_brought_back_and_runs(
    dashboard: Dashboard, studio: Studio, place: str
) -> None:
    """With all its tries anew, from the list as from its own screen."""
    (task_id,) = studio.enqueue("broken.png")
    studio.work()
    page = dashboard.open("/tasks" if place == "list" else f"/tasks/{task_id}")
    entry = act(
        dashboard,
        f"Retry {task_id}",
        title="Retry resize?",
        go="Bring it back",
        look=lambda: studio.record(task_id).state,
        told=f"{task_id} is brought back",
        does=f"POST /api/v1/tasks/{task_id}/retry",
    )

    assert entry.did == '{"retried":true}'
    assert studio.app.store.queue("default").count().dead == 0
    expect(page.get_by_text("retrying", exact=True).last).to_be_visible()
    studio.is_mended.set()
    studio.work()
    assert studio.record(task_id).state is State.COMPLETED
    page.keyboard.press("r")
    expect(page.get_by_text("completed", exact=True).last).to_be_visible()


@pytest.mark.parametrize("place", ["list", "task"])
def test_a_task_that_waits_is_cancelled_and_never_runs(
    dashboard: Dashboard, studio: Studio, place: str
) -> None:
    """From the list as from its own screen; others run."""
    task_id, other = studio.enqueue("a.png", "b.png")
    page = dashboard.open("/tasks" if place == "list" else f"/tasks/{task_id}")
    entry = act(
        dashboard,
        f"Cancel {task_id}",
        title="Cancel resize?",
        go="Cancel the task",
        look=lambda: studio.record(task_id).state,
        told=f"{task_id} is cancelled",
        does=f"POST /api/v1/tasks/{task_id}/cancel",
    )

    assert entry.did == '{"cancelled":true}'
    assert studio.record(task_id).state is State.CANCELLED
    expect(page.get_by_text("cancelled", exact=True).last).to_be_visible()
    expect(page.get_by_role("button", name=f"Cancel {task_id}")).to_have_count(0)
    studio.work()
    assert studio.record(task_id).state is State.CANCELLED
    assert studio.record(other).state is State.COMPLETED


def test_a_task_that_runs_is_stopped(dashboard: Dashboard, studio: Studio) -> None:
    """It does not come to its end."""
    task_id = studio.crawl.enqueue("https://example.com").id
    with studio.working():
        page = dashboard.open(f"/tasks/{task_id}")
        expect(heading(page, "crawl")).to_contain_text("processing")
        act(
            dashboard,
            f"Cancel {task_id}",
            title="Cancel crawl?",
            go="Cancel the task",
            look=lambda: studio.record(task_id).state,
            told=f"{task_id} is cancelled",
            does=f"POST /api/v1/tasks/{task_id}/cancel",
        )
        until(page, lambda: studio.record(task_id).state is State.CANCELLED)
        expect(heading(page, "crawl")).to_contain_text("cancelled")

    assert not studio.record(task_id).result


def test_a_task_that_ended_meanwhile_is_not_cancelled(dashboard: Dashboard, studio: Studio) -> None:
    """That is told, and what came of it stays."""
    (task_id,) = studio.enqueue("a.png")
    page = dashboard.open(f"/tasks/{task_id}")
    dialog = asked(page, f"Cancel {task_id}", "Cancel resize?")
    studio.work()
    dialog.get_by_role("button", name="Cancel the task").click()

    expect_told(page, f"{task_id} was finished already")
    assert studio.record(task_id).state is State.COMPLETED
