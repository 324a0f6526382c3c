"""Pauses and limits that other tests replace by shorter ones are as short as they should be."""

from segue.tasks.worker import settler, slots, sources


def test_a_worker_tries_again_soon_after_a_store_had_no_room() -> None:
    assert settler.FULL_PAUSE_SECONDS <= 2
    assert sources.FULL_PAUSE_SECONDS <= 2


def test_a_thread_that_does_not_stop_is_given_up_soon() -> None:
    assert slots.ABANDON_SECONDS <= 5
