"""Laws of the content of a file on a disk that loses power: it is like any array of bytes."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from segue.testing.contents import PAGE_BYTES, Content

POSITIONS = st.integers(0, 5 * PAGE_BYTES) | st.sampled_from(
    [PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES]
)
DATA = st.binary(max_size=20) | st.builds(
    lambda piece, times: piece * times, st.binary(min_size=1, max_size=3), st.integers(1, 5_000)
)
CHANGES = st.lists(st.tuples(POSITIONS, DATA | st.none()), max_size=12)
"""Data to write at a position, or nothing, for the size to become that."""


def changed(before: bytes, position: int, data: bytes | None) -> bytes:
    """Return what a file holds after a change."""
    if data is None:
        return before[:position].ljust(position, b"\0")
    return before[:position].ljust(position, b"\0") + data + before[position + len(data) :]


@given(first=DATA, changes=CHANGES)
@example(first=b"x" * PAGE_BYTES, changes=[(1, None), (PAGE_BYTES, None)])
@example(first=b"x", changes=[(2 * PAGE_BYTES, b"y"), (PAGE_BYTES, None), (3 * PAGE_BYTES, b"")])
def test_a_content_is_what_was_written_last_and_zeros_elsewhere(
    first: bytes, changes: list[tuple[int, bytes | None]]
) -> None:
    """Through any writes and changes of size; what was copied before stays as it was."""
    content, expected = Content(first), first
    copies = []
    for position, data in changes:
        copies.append((content.copy(), expected))
        if data is None:
            content.resize(position)
        else:
            content.write(data, position)
        expected = changed(expected, position, data)
    copies.append((content, expected))

    for each, held in copies:
        assert each.size_bytes == len(held)
        assert bytes(each) == held


@given(first=DATA, changes=CHANGES)
def test_a_content_that_was_saved_is_read_back(
    first: bytes, changes: list[tuple[int, bytes | None]]
) -> None:
    """With its holes, and without: the file holds every byte of it."""
    expected = first
    for position, data in changes:
        expected = changed(expected, position, data)
    with TemporaryDirectory() as directory:
        saved, whole = Path(directory, "saved"), Path(directory, "whole")
        Content(expected).save(saved)
        whole.write_bytes(expected)

        assert saved.read_bytes() == expected
        assert bytes(Content.read(saved)) == expected
        assert bytes(Content.read(whole)) == expected
