"""Where the items of an exported state lie in its file, found without reading any of them.

A state is one JSON object, or several, as one on each line; together they are one state. Brackets,
commas and quotation marks are found a block at a time, all at once, so that a file of any size
costs one look at its bytes and next to no memory. What is between them is not looked at: whoever
parses the items finds out whether they are JSON.
"""

import json
import mmap
from dataclasses import field
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from segue.stores.migration import UnknownState
from segue.values import dataclass

BLOCK_BYTES: Final = 8 << 20
PIECE_BYTES: Final = 4 << 20
"""A list is cut where its items are larger together."""

_OPEN, _CLOSE, _COMMA, _COLON = 1, 2, 3, 4
_TOKENS: Final = {b"{": _OPEN, b"[": _OPEN, b"}": _CLOSE, b"]": _CLOSE, b",": _COMMA, b":": _COLON}
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_WHITE: Final = b" \t\r\n"
_MEMBERS, _ITEMS = 1, 2
"""How deep the members of the state lie, and the items of its lists."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Items that stand side by side, with commas between them."""

    start: int
    stop: int
    count: int


@dataclass(slots=True)
class Member:
    """A name of the state, and where its value lies."""

    name: str
    start: int
    stop: int = 0
    pieces: list[Piece] = field(default_factory=list)
    """If it is a list, its items."""
    is_list: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is where in a file."""

    members: list[Member]
    digest: str
    """Names the content of the file."""


def outline_of(
    path: Path, *, block_bytes: int = BLOCK_BYTES, piece_bytes: int = PIECE_BYTES
) -> Outline:
    """Return where everything is. Raises UnknownState if it is no JSON object."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise UnknownState("not the state of a queue: it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Scan(data, piece_bytes).run(block_bytes)


class _Scan:
    """One look at a file, from its beginning to its end."""

    def __init__(self, data: mmap.mmap, piece_bytes: int) -> None:
        self._data = data
        self._piece_bytes = piece_bytes
        self._members: list[Member] = []
        self._is_open = False
        self._is_next_due = False
        """Whether a comma was there, behind which there must be something."""
        self._member: Member | None = None
        self._last = 0
        """Where what was not looked at begins."""
        self._piece_start = 0
        self._commas = 0
        """How many items of the piece are over."""

    def run(self, block_bytes: int) -> Outline:
        if b"\0" in self._data[:4]:
            raise UnknownState("not the state of a queue: it is no text in UTF-8")
        self._last = len(_UTF8_MARK) if self._data[:3] == _UTF8_MARK else 0
        digest = blake2b(digest_size=16)
        tokens = _Tokens()
        size = len(self._data)
        for start in range(0, size, block_bytes):
            block = self._data[start : start + block_bytes]
            digest.update(block)
            place, kind, depth = tokens.within(block)
            self._take_in(place + start, kind, depth)
        if tokens.depth or tokens.is_in_string:
            raise UnknownState("not the state of a queue: it is no JSON: it ends too early")
        self._require_white(self._last, size)
        return Outline(members=self._members, digest=digest.hexdigest())

    def _take_in(self, place: _Ints, kind: npt.NDArray[np.uint8], depth: _Ints) -> None:
        """Take in what stands between the members, and the commas between items."""
        commas = place[(kind == _COMMA) & (depth == _ITEMS)]
        is_between = (depth == _MEMBERS) & ((kind == _COMMA) | (kind == _COLON))
        is_between |= (depth == _MEMBERS) & (kind == _OPEN) | (depth == 0)
        at = 0
        for position, what, deep in zip(
            place[is_between].tolist(),
            kind[is_between].tolist(),
            depth[is_between].tolist(),
            strict=True,
        ):
            until = int(np.searchsorted(commas, position))
            self._cut(commas[at:until])
            at = until
            self._step(position, what, deep)
        self._cut(commas[at:])

    def _step(self, position: int, what: int, deep: int) -> None:
        if what == _OPEN:
            self._require_white(self._last, position)
            if self._data[position : position + 1] != b"{":
                raise UnknownState("not the state of a queue: it is no JSON object")
            self._is_open = True
        elif what == _COLON and self._is_open and self._member is None:
            self._begin_member(position)
            self._is_next_due = False
        elif what == _COMMA and self._member is not None:
            self._end_member(position)
            self._is_next_due = True
        elif (
            what == _CLOSE
            and self._is_open
            and not self._is_next_due
            and self._data[position : position + 1] == b"}"
        ):
            if self._member is not None:
                self._end_member(position)
            else:
                self._require_white(self._last, position)
            self._is_open = False
        else:
            raise _no_json(position)
        self._last = position + 1

    def _begin_member(self, colon: int) -> None:
        try:
            name = json.loads(self._data[self._last : colon])
        except ValueError:
            name = None
        if not isinstance(name, str):
            raise _no_json(self._last)
        self._member = Member(name, colon + 1)
        self._piece_start = self._commas = 0

    def _end_member(self, stop: int) -> None:
        member = self._member
        assert member is not None
        member.start, member.stop = self._stripped(member.start, stop)
        if self._data[member.start : member.start + 1] == b"[":
            if self._data[member.stop - 1 : member.stop] != b"]":
                raise _no_json(member.stop - 1)
            member.is_list = True
            self._end_pieces(member)
        self._members.append(member)
        self._member = None

    def _cut(self, commas: _Ints) -> None:
        """Count items, and cut the list where enough of them are together."""
        member = self._member
        if member is None or not len(commas):
            return
        start = self._piece_start or member.start
        done = 0
        while True:
            cut = int(np.searchsorted(commas, start + self._piece_bytes))
            if cut >= len(commas):
                break
            comma = int(commas[cut])
            count = self._commas + cut - done + 1
            member.pieces.append(Piece(start=start, stop=comma, count=count))
            start = self._piece_start = comma + 1
            self._commas = 0
            done = cut + 1
        self._commas += len(commas) - done

    def _end_pieces(self, member: Member) -> None:
        stop = member.stop - 1
        # The first piece was begun before it was known where the list begins.
        first = member.start + 1
        if member.pieces:
            head = member.pieces[0]
            member.pieces[0] = Piece(start=first, stop=head.stop, count=head.count)
        start = self._piece_start or first
        low, high = self._stripped(start, stop)
        if low < high or self._commas or member.pieces:
            member.pieces.append(Piece(start=start, stop=stop, count=self._commas + 1))

    def _stripped(self, start: int, stop: int) -> tuple[int, int]:
        while start < stop and self._data[start] in _WHITE:
            start += 1
        while stop > start and self._data[stop - 1] in _WHITE:
            stop -= 1
        return start, stop

    def _require_white(self, start: int, stop: int) -> None:
        low, high = self._stripped(start, stop)
        if low < high:
            raise _no_json(low)


class _Tokens:
    """Finds brackets, commas and colons outside of texts, block after block."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_in_string = False
        self._is_escaped = False
        """Whether the first byte of the next block is."""
        self._kinds = np.zeros(256, dtype=np.uint8)
        for token, kind in _TOKENS.items():
            self._kinds[token[0]] = kind

    def within(self, block: bytes) -> tuple[_Ints, npt.NDArray[np.uint8], _Ints]:
        """Return where they are, what they are, and how deep what comes next lies."""
        data = np.frombuffer(block, dtype=np.uint8)
        quotes = np.flatnonzero(data == _QUOTE)
        escaped = self._escaped(data)
        if len(escaped):
            quotes = quotes[~np.isin(quotes, escaped, assume_unique=True)]
        place = np.flatnonzero(self._kinds[data])
        is_outside = (np.searchsorted(quotes, place) + self.is_in_string) % 2 == 0
        place = place[is_outside]
        kind = self._kinds[data[place]]
        steps = (kind == _OPEN).astype(np.int64) - (kind == _CLOSE)
        depth = self.depth + np.cumsum(steps)
        if len(depth):
            if int(depth.min()) < 0:
                raise UnknownState("not the state of a queue: it is no JSON: too many brackets")
            self.depth = int(depth[-1])
        self.is_in_string ^= len(quotes) % 2 == 1
        return place, kind, depth

    def _escaped(self, data: npt.NDArray[np.uint8]) -> _Ints:
        """Return where bytes are that stand behind a backslash which is itself not escaped."""
        slashes = np.flatnonzero(data == _BACKSLASH)
        carried = np.array([0] if self._is_escaped else [], dtype=np.int64)
        if self._is_escaped and len(slashes) and slashes[0] == 0:
            slashes = slashes[1:]
        self._is_escaped = False
        if not len(slashes):
            return carried
        is_first = np.concatenate(([True], np.diff(slashes) != 1))
        firsts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(firsts, len(slashes)))
        behind = (slashes[firsts] + lengths)[lengths % 2 == 1]
        if len(behind) and behind[-1] == len(data):
            self._is_escaped = True
            behind = behind[:-1]
        return np.concatenate((carried, behind))


def _no_json(position: int) -> UnknownState:
    return UnknownState(f"not the state of a queue: it is no JSON at byte {position}")
