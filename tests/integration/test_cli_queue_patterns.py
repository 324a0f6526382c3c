"""`segue queue` with dead letters of one pattern."""

from pathlib import Path

from segue.stores.opening import open_directory
from tests.integration.cli_support import ask


def test_dead_letters_of_one_pattern_are_listed_redriven_and_dropped(tmp_path: Path) -> None:
    """As a server's groups tell it: alike but for a number."""
    with open_directory(tmp_path, sync="os") as store:
        queue = store.queue("jobs")
        queue.push_many([b"1", b"2", b"3"])
        for job in queue.lease_many(3):
            job.bury("it is hopeless" if job.text == "2" else f"port {job.text} is closed")
    pattern = ("--pattern", "port # is closed")
    listed = ask("queue", "dead", tmp_path, "jobs", *pattern)
    redriven = ask("queue", "redrive", tmp_path, "jobs", *pattern, "--limit", "1")
    dropped = ask("queue", "discard", tmp_path, "jobs", *pattern, "--yes")

    assert [line[0] for line in listed.fields] == ["0-0", "0-2"]
    assert redriven.lines == ["matched\t1", "redriven\t1"]
    assert dropped.lines == ["matched\t1", "discarded\t1"]
