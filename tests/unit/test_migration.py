"""Old state of queues: what is read of it, what is reported, and that nothing is dropped."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue.errors import InvalidArgument
from segue.stores.migration import (
    Mismatch,
    UnknownState,
    body_of,
    old_state,
    parse_state,
    read_state,
)
from segue.stores.state import item_of

items = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def v4(
    segments: Mapping[str, object], *, size: object = 100, **queues: dict[str, object]
) -> dict[str, object]:
    """A state of version 4: segments, and what the metadata says of each queue."""
    stated = {name: {"metadata": entry} for name, entry in queues.items()}
    return {**segments, "metadata": {"config": {"segment_size": size}, "queues": stated}}


def entry(count: int, head: int = 0, tail: int = 0) -> dict[str, object]:
    return {"count": count, "head_segment": head, "tail_segment": tail}


# Reading -------------------------------------------------------------------------------------


def test_the_seeds_example_is_read_in_order() -> None:
    """250 items in segments of 100: one priority, in order, nothing to complain about."""
    numbers = [{"id": number} for number in range(250)]
    document = v4(
        {f"queue_0_seg_{place}": numbers[place * 100 : place * 100 + 100] for place in range(3)},
        queue_0=entry(250, 0, 2),
    )
    state = read_state(document)

    assert (state.format, state.segment_size, state.count) == ("v4", 100, 250)
    assert state.items == {0: tuple(numbers)}
    assert state.mismatches == ()


def test_the_format_before_is_read_as_well() -> None:
    """One list per priority, and counts that agree."""
    state = read_state(
        {
            "queue_3": ["c"],
            "queue_0": ["a", "b"],
            "metadata": {
                "queues": {
                    "queue_0": {"metadata": {"count": 2}},
                    "queue_3": {"metadata": {"count": 1}},
                }
            },
        }
    )

    assert (state.format, state.segment_size) == ("v3", None)
    assert list(state.items.items()) == [(0, ("a", "b")), (3, ("c",))]
    assert state.mismatches == ()


def test_segments_are_in_the_order_of_their_numbers() -> None:
    """Not in that of their names, where 10 comes before 9."""
    document = v4(
        {"queue_0_seg_10": [3], "queue_0_seg_9": [2], "queue_0_seg_8": [1]},
        queue_0=entry(3, 8, 10),
    )

    assert read_state(document).items == {0: (1, 2, 3)}


def test_items_out_on_a_lock_come_first_in_their_priority() -> None:
    """They were popped and not acknowledged: leaving them out would lose them."""
    document = v4({"queue_0_seg_0": ["b"]}, queue_0=entry(1))
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    metadata["_active_lock"] = {
        "lock_id": "abc",
        "items_with_priority": [{"item": "a", "priority": 0}, {"item": "z", "priority": 4}],
        "expires_at": 1709139245.123,
    }
    state = read_state(document)

    assert state.items == {0: ("a", "b"), 4: ("z",)}
    assert (state.returned, state.mismatches) == (2, ())


@pytest.mark.parametrize("lock", [{}, {"items_with_priority": [["a", 0]]}, "held"])
def test_a_lock_whose_items_cannot_be_read_is_refused(lock: object) -> None:
    """Rather than imported without them."""
    document = {"queue_0": [], "metadata": {"queues": {}, "_active_lock": lock}}

    with pytest.raises(UnknownState, match="_active_lock"):
        read_state(document)


def test_an_empty_queue_is_a_state_too() -> None:
    """What an export of an empty queue looks like can be imported."""
    state = read_state(v4({}))

    assert (state.count, state.mismatches) == (0, ())


@pytest.mark.parametrize(
    "document",
    [
        [],
        "queue_0",
        None,
        {},
        {"metadata": {}},
        {"queue_x": []},
        {"queue_0": {"not": "a list"}},
        {"queue_0_seg_0": 7},
        {"queue_4294967296": []},
    ],
)
def test_what_is_neither_format_is_refused(document: object) -> None:
    """With an error of the caller's kind, before anything is pushed."""
    with pytest.raises(InvalidArgument):
        read_state(document)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000, b'{"queue_0": [1], "queue_0": [2]}']
)
def test_what_is_no_json_or_says_a_list_twice_is_refused(text: bytes) -> None:
    """Of two lists of one name one would be dropped in silence."""
    with pytest.raises(UnknownState):
        read_state(parse_state(text))


# Reconciling ---------------------------------------------------------------------------------


def test_a_wrong_count_is_reported_and_the_segments_are_trusted() -> None:
    """Nothing is dropped because a number says so."""
    state = read_state(v4({"queue_0_seg_0": [1, 2, 3]}, queue_0=entry(2)))

    assert state.items == {0: (1, 2, 3)}
    assert state.mismatches == (Mismatch(key="queue_0", what="count", stated=2, found=3),)


@pytest.mark.parametrize(
    ("head", "tail", "stated"),
    [
        (0, 3, "0 to 3"),
        (1, 2, "1 to 2"),
        (2, 0, "2 to 0"),
        (0, "two", "0 to two"),
    ],
)
def test_pointers_that_do_not_fit_the_segments_are_reported(
    head: int, tail: int | str, stated: str
) -> None:
    """A segment that is missing, or one that nothing points to."""
    state = read_state(
        v4(
            {"queue_0_seg_0": [1], "queue_0_seg_1": [2], "queue_0_seg_2": [3]},
            queue_0={"count": 3, "head_segment": head, "tail_segment": tail},
        )
    )

    assert state.items == {0: (1, 2, 3)}
    assert state.mismatches == (
        Mismatch(key="queue_0", what="segments", stated=stated, found="0 to 2"),
    )


def test_a_hole_between_segments_is_shown() -> None:
    """However far apart the pointers are."""
    state = read_state(
        v4({"queue_0_seg_0": [1], "queue_0_seg_5": [2]}, queue_0=entry(2, 0, 10**15))
    )

    assert [each.found for each in state.mismatches] == ["0, 5"]


def test_empty_segments_are_as_good_as_none() -> None:
    """The tail stays when it is empty, and a deleted head may be left as an empty list."""
    state = read_state(
        v4({"queue_0_seg_0": [], "queue_0_seg_1": [1], "queue_0_seg_2": []}, queue_0=entry(1, 1, 2))
    )

    assert state.items == {0: (1,)}
    assert state.mismatches == ()


def test_metadata_of_a_queue_that_is_not_there_is_reported() -> None:
    """It counts items that nobody has."""
    state = read_state(v4({}, queue_7=entry(12)))

    assert state.mismatches == (Mismatch(key="queue_7", what="count", stated=12, found=0),)


def test_everything_odd_is_reported_at_once() -> None:
    """Keys of other kinds, both formats side by side, no size of segments."""
    document = v4({"queue_0_seg_0": ["new"], "queue_0": ["old"], "extra": 1}, size=0)
    state = read_state(document)

    assert state.items == {0: ("old", "new")}
    assert [(each.key, each.what) for each in state.mismatches] == [
        ("extra", "unknown key, left out"),
        ("metadata", "segment_size"),
        ("queue_0", "both formats"),
        ("queue_0", "count"),
        ("queue_0", "segments"),
    ]


# Bodies --------------------------------------------------------------------------------------


@given(items)
@example("123")
@example("")
@example("\ud800")
@example({"base64": "/w=="})
@example({"base64": "aGk="})
@example({"base64": "/x=="})
def test_the_body_of_an_item_shows_as_that_item(item: object) -> None:
    """A law: what was imported is exported as it was."""
    assert item_of(body_of(item)) == item


@given(st.binary())
@example(b'"a string"')
@example(b"text")
@example(b"\xff")
def test_an_item_is_the_same_after_any_number_of_turns(body: bytes) -> None:
    """A law: exporting and importing again changes nothing more."""
    item = item_of(body)
    again = item_of(body_of(item))

    assert json.dumps(again) == json.dumps(item)


def test_an_older_version_gets_lists_and_counts() -> None:
    """For those who must go back."""
    document = v4({"queue_0_seg_0": [1, 2], "queue_0_seg_1": [3]}, queue_0=entry(3, 0, 1))

    assert old_state(document) == {
        "queue_0": [1, 2, 3],
        "metadata": {"queues": {"queue_0": {"metadata": {"count": 3}}}},
    }
    assert read_state(old_state(document)).mismatches == ()


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(constant: str) -> None:
    """They could not be exported as they came."""
    with pytest.raises(InvalidArgument, match="no JSON"):
        parse_state(f'{{"queue_0": [{constant}]}}'.encode())
