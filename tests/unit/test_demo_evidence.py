"""The demo says "lost 0, duplicates explained": it must be able to say otherwise."""

from pathlib import Path

from examples.demo.evidence import (
    AFTER_FAILURE,
    AFTER_KILL,
    AFTER_POISON,
    BEGUN,
    DONE,
    FAILED,
    UNEXPLAINED,
    Lines,
    Note,
    append_lines,
    totals,
    unfinished,
)

KILLED = 7
OTHER = 8


def note(work: str, what: str, attempt: int = 1, pid: int = OTHER) -> Note:
    return Note(work=work, what=what, attempt=attempt, pid=pid, at=0.0)


def test_what_was_sent_and_is_neither_done_nor_dead_is_lost() -> None:
    found = totals(
        {"library": {"a", "b"}, "http": {"c"}},
        [note("a", BEGUN), note("a", DONE), note("b", BEGUN)],
        dead={"c"},
        killed=set(),
        poisoned=set(),
    )

    assert found.lost == {"b"}
    assert (found.sent, found.done, found.dead) == ({"library": 2, "http": 1}, 1, 1)


def test_what_was_done_without_having_been_sent_does_not_make_up_for_a_loss() -> None:
    found = totals(
        {"library": {"a"}},
        [note("z", BEGUN), note("z", DONE)],
        dead=set(),
        killed=set(),
        poisoned=set(),
    )

    assert (found.done, found.lost) == (0, {"a"})


def test_a_run_beyond_the_first_has_a_reason() -> None:
    """Each kind of reason, and each only where it is one."""
    found = totals(
        {"library": {"flaky", "held", "poison"}},
        [
            note("flaky", BEGUN),
            note("flaky", FAILED),
            note("flaky", BEGUN, 2),
            note("flaky", DONE, 2),
            note("held", BEGUN, pid=KILLED),
            note("held", BEGUN, 2),
            note("held", DONE, 2),
            note("poison", BEGUN, pid=1),
            note("poison", BEGUN, 2, pid=2),
        ],
        dead={"poison"},
        killed={KILLED},
        poisoned={"poison"},
    )

    assert found.repeated == {AFTER_FAILURE: 1, AFTER_KILL: 1, AFTER_POISON: 1}
    assert (found.unexplained, found.retried, found.runs) == (0, 3, 6)


def test_a_run_that_nothing_made_necessary_is_unexplained() -> None:
    """Done by a living worker, and run again; and a delivery that hides that it is the second."""
    found = totals(
        {"library": {"twice", "hidden"}},
        [
            note("twice", BEGUN),
            note("twice", DONE),
            note("twice", BEGUN, 2),
            note("hidden", BEGUN, pid=KILLED),
            note("hidden", BEGUN, 1),
            note("hidden", DONE, 1),
        ],
        dead=set(),
        killed={KILLED},
        poisoned=set(),
    )

    assert found.repeated == {UNEXPLAINED: 2}


def test_what_a_process_has_in_its_hands_is_what_it_began_and_did_not_end() -> None:
    notes = [
        note("a", BEGUN, pid=KILLED),
        note("b", BEGUN, pid=KILLED),
        note("a", DONE, pid=KILLED),
        note("c", BEGUN),
    ]

    assert list(unfinished(notes, KILLED)) == ["b"]


def test_lines_are_told_once_and_only_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    lines = Lines(path)
    before = lines.new()
    append_lines(path, ["one", "two"])
    first = lines.new()
    with path.open("a") as file:
        file.write("thr")
    half = lines.new()
    append_lines(path, ["ee"])

    assert (before, first, half, lines.new()) == ([], ["one", "two"], [], ["three"])
