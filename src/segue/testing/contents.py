"""What a file holds, page by page: a new segment is megabytes of zeros and a few records."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

PAGE_BYTES: Final = 4096

_ZEROS: Final = bytes(PAGE_BYTES)
_READ_BYTES: Final = 1 << 20


class Content:
    """The bytes of a file. Zeros take no space, and a copy shares all that is not changed."""

    def __init__(self, data: bytes = b"") -> None:
        self.size_bytes = 0
        self._pages: dict[int, bytes] = {}
        self.write(data, 0)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what the file at `path` holds."""
        content = cls()
        with path.open("rb", buffering=0) as file:
            fd = file.fileno()
            content.size_bytes = os.fstat(fd).st_size
            for start, stop in _written_parts(fd, content.size_bytes):
                for position in range(start, stop, _READ_BYTES):
                    count_bytes = min(_READ_BYTES, stop - position)
                    content.write(os.pread(fd, count_bytes, position), position)
        return content

    def copy(self) -> Self:
        """Return the same once more, to be changed on its own."""
        other = type(self)()
        other.size_bytes = self.size_bytes
        other._pages = dict(self._pages)
        return other

    def resize(self, size_bytes: int) -> None:
        """Cut the end off, or add zeros."""
        if size_bytes < self.size_bytes:
            kept, within = divmod(size_bytes, PAGE_BYTES)
            self._pages = {number: page for number, page in self._pages.items() if number <= kept}
            if kept in self._pages:
                self._put(kept, self._pages[kept][:within].ljust(PAGE_BYTES, b"\0"))
        self.size_bytes = size_bytes

    def write(self, data: bytes, position: int) -> None:
        """Put `data` at `position`, behind zeros if that lies beyond the end."""
        end = position + len(data)
        for number in range(position // PAGE_BYTES, -(-end // PAGE_BYTES)):
            first = number * PAGE_BYTES
            start, stop = max(first, position), min(first + PAGE_BYTES, end)
            piece = data[start - position : stop - position]
            page = self._pages.get(number, _ZEROS)
            self._put(number, page[: start - first] + piece + page[stop - first :])
        self.size_bytes = max(self.size_bytes, end)

    def _put(self, number: int, page: bytes) -> None:
        if page == _ZEROS:
            self._pages.pop(number, None)
        else:
            self._pages[number] = page

    def save(self, path: Path) -> None:
        """Make a file of it, with holes where there are zeros."""
        with path.open("wb", buffering=0) as file:
            for number, page in self._pages.items():
                first = number * PAGE_BYTES
                os.pwrite(file.fileno(), page[: self.size_bytes - first], first)
            file.truncate(self.size_bytes)

    def __bytes__(self) -> bytes:
        data = bytearray(self.size_bytes)
        for number, page in self._pages.items():
            first = number * PAGE_BYTES
            data[first : first + PAGE_BYTES] = page[: self.size_bytes - first]
        return bytes(data)


def _written_parts(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where a file may hold something else than zeros; who keeps no holes yields it all."""
    stop = 0
    while stop < size_bytes:
        try:
            start = os.lseek(fd, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # There is nothing more but a hole.
        stop = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, min(stop, size_bytes)
