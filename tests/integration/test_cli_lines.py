"""How standard input becomes batches of lines."""

import os
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from segue.cli.lines import Splitter, batches


@given(st.lists(st.binary(max_size=8)), st.sampled_from([b"\n", b"\0"]))
def test_chunks_do_not_matter_to_lines(chunks: list[bytes], separator: bytes) -> None:
    """However input is cut in pieces, the lines are those of the whole."""
    splitter = Splitter(separator)
    lines = [line for chunk in chunks if chunk for line in splitter.feed(chunk)]
    lines += splitter.finish()

    expected = b"".join(chunks).split(separator)
    assert lines == (expected if expected[-1] else expected[:-1])


@given(
    st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line)),
    st.integers(min_value=1, max_value=5),
    st.integers(min_value=8, max_value=20),
)
def test_batches_keep_their_limits_and_every_line(
    lines: list[bytes], lines_max: int, batch_bytes_max: int
) -> None:
    """No batch is too long or too large, none is cut short without need, no line is lost."""
    found = _batches(b"".join(line + b"\n" for line in lines), lines_max, batch_bytes_max)

    assert [line for batch in found for line in batch] == lines
    for batch in found:
        assert 1 <= len(batch) <= lines_max
        assert sum(map(len, batch)) <= batch_bytes_max
    for batch, following in pairwise(found):
        size_bytes = sum(map(len, batch)) + len(following[0])
        assert len(batch) == lines_max or size_bytes > batch_bytes_max


def _batches(stdin: bytes, lines_max: int, batch_bytes_max: int) -> list[list[bytes]]:
    reading, writing = os.pipe()
    try:
        os.write(writing, stdin)
        os.close(writing)
        return list(batches(reading, b"\n", lines_max=lines_max, batch_bytes_max=batch_bytes_max))
    finally:
        os.close(reading)
