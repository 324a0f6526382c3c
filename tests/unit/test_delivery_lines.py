"""What a queue remembers of messages: no more than is outstanding, however many there were."""

from segue.delivery import events
from segue.delivery.events import ASIDE, Cause, How, Run, Take
from segue.delivery.ledger import Ledger
from segue.delivery.lines import HEAP_SLACK

ROUNDS = 10 * HEAP_SLACK


def test_delayed_messages_that_were_purged_are_forgotten() -> None:
    """Though the time they were to wait for is far away."""
    ledger = Ledger()
    for offset in range(ROUNDS):
        ledger.apply(events.Deferred(((offset, 0, 1_000_000 + offset),), offset, offset + 1))
        ledger.apply(events.Purged(((ASIDE, offset + 1),)))

    assert (ledger.delayed, ledger.totals["purged"]) == (0, ROUNDS)
    assert len(ledger.due) <= HEAP_SLACK + 1


def test_messages_that_came_back_and_were_dropped_are_forgotten() -> None:
    """Though nobody has taken from the line that they stood in."""
    ledger = Ledger()
    for offset in range(ROUNDS):
        run = Run(0, offset, 1)
        ledger.apply(events.Leased(offset, 1, b"", (Take(*run, 1, 0),)))
        ledger.apply(events.Returned(offset, Cause.FAILED, 0, b"", (run,)))
        ledger.apply(events.Settled(0, How.DROPPED, (run,)))

    assert (ledger.ready, ledger.totals["dropped"]) == (0, ROUNDS)
    assert len(ledger.levels[0].ready) <= HEAP_SLACK + 1


def test_keys_that_are_done_with_are_forgotten() -> None:
    """As those of writes that were adopted are, long before their time."""
    ledger = Ledger()
    for number in range(ROUNDS):
        digest = number.to_bytes(16, "little")
        ledger.apply(events.Keyed(digest, 1_000_000, 0, number))
        ledger.apply(events.Keyed(digest, 1, 0, number))
        ledger.forget_keys(2)

    assert ledger.keys == {}
    assert len(ledger._keys_due) <= HEAP_SLACK + 1


def test_what_is_outstanding_stays_when_the_rest_is_forgotten() -> None:
    """In its order: by the time it is due, and by the place it has in line."""
    ledger = Ledger()
    for offset in range(ROUNDS):
        ledger.apply(events.Deferred(((offset, 0, 1_000_000 - offset),), offset, offset + 1))
        if offset % 10:
            ledger.apply(events.Settled(0, How.DROPPED, (Run(ASIDE, offset, 1),)))
    ledger.promote(1_000_000)
    taken = [take.first for take in ledger.take(ROUNDS, lambda _: 0)]

    assert taken == sorted(range(0, ROUNDS, 10), reverse=True)
