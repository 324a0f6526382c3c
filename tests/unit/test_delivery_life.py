"""The life of a message as one table."""

from segue.delivery.life import TRANSITIONS, Happening, State


def test_every_state_is_reached_and_every_happening_has_its_place() -> None:
    """No line of the table is missing, and none leads nowhere."""
    reached = {state for states in TRANSITIONS.values() for state in states}

    assert reached == set(State)
    assert {happening for _, happening in TRANSITIONS} == set(Happening)
    assert all(TRANSITIONS.values())


def test_what_is_settled_stays_settled() -> None:
    """Nothing leads out of the end."""
    assert not [before for before, _ in TRANSITIONS if before is State.SETTLED]


def test_only_what_is_leased_can_be_acked_or_given_back() -> None:
    """A stale holder ends nothing."""
    held = {
        Happening.ACKED,
        Happening.EXTENDED,
        Happening.RELEASED,
        Happening.FAILED,
        Happening.EXPIRED,
        Happening.BURIED,
    }

    assert {before for before, happening in TRANSITIONS if happening in held} == {State.LEASED}


def test_what_is_dead_comes_back_only_by_redrive() -> None:
    """Nothing is delivered from the dead letters by itself."""
    ways = {
        happening: after
        for (before, happening), after in TRANSITIONS.items()
        if before is State.DEAD
    }

    assert ways == {
        Happening.REDRIVEN: frozenset({State.READY}),
        Happening.DISCARDED: frozenset({State.SETTLED}),
    }


def test_every_state_can_come_to_an_end() -> None:
    """From each there is a way to be settled."""
    ends = {State.SETTLED}
    for _ in State:
        ends |= {before for (before, _), after in TRANSITIONS.items() if after & ends}

    assert ends == set(State)
