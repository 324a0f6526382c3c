"""`segue queue timeline`: what happened to a message, as lines, as JSON, and as an exit code."""

from pathlib import Path

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.cli.text import iso_time
from segue.delivery.message import MessageId
from tests.integration.cli_support import ask


@pytest.fixture
def store(scratch: Path) -> Path:
    """A store with a message that failed once and is settled, and one that waits."""
    root = scratch / "data"
    with segue.open(root, sync="os") as opened:
        queue = opened.queue("jobs")
        queue.push(b"work")
        queue.lease(owner="ada").fail("no paper", delay=0)
        queue.lease(owner="bob").ack()
        queue.push(b"wait")
    return root


def test_a_life_is_told_line_by_line(store: Path) -> None:
    """Time, what, attempt, by whom, why; then until when."""
    answer = ask("queue", "timeline", store, "jobs", "0-0")
    facts = dict(row for row in answer.fields if row[0] != "event")
    events = [row[1:] for row in answer.fields if row[0] == "event"]
    with segue.open(store, sync="os") as opened:
        told = opened.queue("jobs").timeline(MessageId("0-0"))

    assert answer.code == 0
    assert (facts["state"], facts["tries"], facts["whole"]) == ("settled", "2", "yes")
    assert (facts["since"], facts["body"]) == ("-", "work")
    assert [row[1:5] for row in events] == [
        ["pushed", "-", "-", "-"],
        ["leased", "1", "ada", "-"],
        ["failed", "1", "ada", "no paper"],
        ["leased", "2", "bob", "-"],
        ["acked", "2", "bob", "-"],
    ]
    assert [row[0] for row in events] == [iso_time(event.at_us or 0) for event in told.events]
    assert [row[6] != "-" for row in events] == [False, True, False, True, False]


def test_the_same_is_one_json_object(store: Path) -> None:
    """For programs."""
    document = ask("queue", "timeline", store, "jobs", "0-0", "--json").json
    events = document["events"]

    assert (document["id"], document["state"], document["whole"]) == ("0-0", "settled", True)
    assert isinstance(document["message"], dict)
    assert (document["message"]["body"], document["message"]["attempt"]) == ("work", 2)
    assert isinstance(events, list)
    assert isinstance(events[2], dict)
    assert {**events[2], "time": ""} == {
        "time": "",
        "what": "failed",
        "attempt": 1,
        "owner": "ada",
        "reason": "no paper",
        "due": None,
        "ends": None,
    }


def test_only_what_never_was_is_not_found(store: Path) -> None:
    """What is settled can be looked at; what is no id is a mistake."""
    assert ask("queue", "timeline", store, "jobs", "0-1").code == 0
    assert ask("queue", "timeline", store, "jobs", "0-2").code == ExitCode.NOT_FOUND
    assert ask("queue", "timeline", store, "nowhere", "0-0").code == ExitCode.NOT_FOUND
    assert ask("queue", "timeline", store, "jobs", "seventeen").code == ExitCode.USAGE
