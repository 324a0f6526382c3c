"""Dead letters by their numbers: which are there, and why they died, without their messages."""

from typing import cast

import pytest

from segue.stores import letters as letters_module
from segue.stores.contract import Queue, Store
from segue.stores.letters import DeadLetters, runs_of
from segue.stores.queue_base import QueueBase
from tests.contract.queue_support import push_all
from tests.contract.test_queue_dead_letters import bury_all


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue with ten dead letters, of which the second and the fifth were brought back."""
    queue = store.queue("jobs")
    bury_all(queue, 10)
    queue.redrive(where=lambda letter: letter.number in (1, 4))
    return queue


@pytest.fixture
def letters(queue: Queue) -> DeadLetters:
    return cast("QueueBase", queue).letters


def test_the_numbers_of_those_that_are_there_are_told_as_runs(letters: DeadLetters) -> None:
    """Whoever knows the letters finds out who left without reading any of them again."""
    assert letters.numbers() == [(0, 1), (2, 4), (5, 10)]
    assert letters.newest() == 9


def test_a_queue_without_letters_has_no_numbers(store: Store) -> None:
    """Neither one that is empty nor one that was never there."""
    queue = store.queue("jobs")
    push_all(queue, 1)
    for name in ("jobs", "other"):
        letters = cast("QueueBase", store.queue(name)).letters

        assert letters.numbers() == []
        assert letters.newest() == -1
        assert list(letters.notes(-1)) == []
        assert list(letters.at([0, 1])) == []


def test_letters_are_found_by_their_numbers(letters: DeadLetters) -> None:
    """In order, without those that are not there."""
    found = list(letters.at([0, 1, 3, 9, 10, 1 << 40]))

    assert [letter.number for letter in found] == [0, 3, 9]
    assert [letter.message.body for letter in found] == [b"0", b"3", b"9"]


@pytest.mark.parametrize("after", [-1, 0, 1, 3, 8, 9])
def test_notes_tell_what_the_letters_tell(letters: DeadLetters, after: int) -> None:
    """Of the same letters, in the same order."""
    notes = [(note.number, note.id, note.cause, note.reason) for note in letters.notes(after)]

    assert notes == [
        (letter.number, letter.message.id, letter.cause, letter.reason)
        for letter in letters.behind(after)
    ]
    assert [note[0] for note in notes] == [
        number for number in (0, 2, 3, 5, 6, 7, 8, 9) if number > after
    ]


def test_large_letters_are_dealt_with_a_few_at_a_time(
    queue: Queue, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is brought back in one step must fit in memory; all of them are, all the same."""
    monkeypatch.setattr(letters_module, "PORTION_BYTES_MAX", 2)
    steps = [len(batch) for _, batch in letters.batches(None, None, None)]
    report = queue.redrive()

    assert steps == [2, 2, 2, 2]
    assert (report.matched, report.redriven) == (8, 8)


def test_numbers_make_runs() -> None:
    """A run for each stretch without a gap."""
    assert runs_of([]) == []
    assert runs_of([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 6), (7, 9)]
