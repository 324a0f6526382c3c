"""Batches of lines from a descriptor: large while input keeps coming, prompt when it pauses."""

import os
import select
from collections.abc import Iterator
from typing import Final

from segue.errors import RecordTooLarge

CHUNK_BYTES: Final = 256 * 1024
"""How much is read at once."""


class Splitter:
    """Cuts chunks into lines. Keeps a line that has not ended yet, however many chunks it spans."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._begun: list[bytes] = []
        self.begun_bytes = 0
        """How long the line is that has not ended yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in `chunk`, without their separators."""
        first, *others = chunk.split(self._separator)
        self._begin(first)
        if not others:
            return []
        lines = [self._end(), *others]
        self._begin(lines.pop())
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it had no separator; nothing if there was none."""
        return [self._end()] if self.begun_bytes else []

    def _begin(self, piece: bytes) -> None:
        if piece:
            self._begun.append(piece)
            self.begun_bytes += len(piece)

    def _end(self) -> bytes:
        line = b"".join(self._begun)
        self._begun.clear()
        self.begun_bytes = 0
        return line


def batches(
    fd: int, separator: bytes, *, lines_max: int, batch_bytes_max: int
) -> Iterator[list[bytes]]:
    """Yield the lines of `fd`, in batches of at most `lines_max` and `batch_bytes_max`.

    No line waits while `fd` is silent: what is there is yielded before the next read blocks.
    Raises RecordTooLarge, once the lines before it are out, if one line can never fit.
    """
    splitter = Splitter(separator)
    batch: list[bytes] = []
    size_bytes = 0
    chunk = os.read(fd, CHUNK_BYTES)
    while chunk:
        for line in splitter.feed(chunk):
            if batch and (size_bytes + len(line) > batch_bytes_max or len(batch) == lines_max):
                yield batch
                batch, size_bytes = [], 0
            batch.append(line)
            size_bytes += len(line)
        if batch and (splitter.begun_bytes > batch_bytes_max or not _is_ready(fd)):
            yield batch
            batch, size_bytes = [], 0
        if splitter.begun_bytes > batch_bytes_max:
            # Before memory is full, not after: the line may never end.
            raise RecordTooLarge(size_bytes=splitter.begun_bytes, size_bytes_max=batch_bytes_max)
        chunk = os.read(fd, CHUNK_BYTES)
    yield from filter(None, (batch, splitter.finish()))


def _is_ready(fd: int) -> bool:
    """Tell whether reading would not block: there is input, or its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
