"""Whether what a server holds of a queue agrees with itself. For tests and for whoever doubts.

A queue is read at one moment, in one transaction, so that it may be in use. That holds the server
for as long as it takes to send what is known of the messages that were ever touched, the dead and
the kept ones: about a second for a million small ones. Nothing is changed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final, cast

from segue.delivery.events import ASIDE, Cause
from segue.delivery.message import HAS_GROUP, HAS_TTL
from segue.delivery.rules import QueueRules
from segue.errors import Damage
from segue.log.layout import is_name
from segue.stores.deduplication import DIGEST_BYTES
from segue.stores.redis.items import (
    _EXPIRES,
    _HEAD,
    _STATE,
    DELAYED,
    HELD_BACK,
    LEASED,
    READY,
    key_from_wire,
    letter_of,
)
from segue.stores.redis.keys import names_key
from segue.stores.redis.libraries import library
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore

SCAN_COUNT: Final = 1000

# The turns of functions/queue.lua.
TURN_RETURNED: Final = -4_000_000_000_000_000
TURN_NEW: Final = 5_000_000_000_000_000

_KINDS: Final = {LEASED: "leased", READY: "ready", DELAYED: "delayed", HELD_BACK: "held back"}
_NO_GROUP: Final = bytes(DIGEST_BYTES)
_EITHER, _NEVER, _ALWAYS = "either", "never", "always"
_HASHES: Final = (b"metadata", b"touched", b"bodies", b"groups", b"letters", b"kept", b"totals")
_ZSETS: Final = (b"lanes", b"lines", b"delayed", b"leases", b"dead")
_FIXED: Final = (*_HASHES, *_ZSETS)
_VARIOUS: Final = re.compile(rb"queue_\d+_seg_\d+|ready_\d+|held_.{16}|kept_\d+", re.DOTALL)
_NAMES: Final = {
    b"|".join((*_FIXED, _VARIOUS.pattern)): _NEVER,
    rb"waiting_(takers|pushers)": _EITHER,
    rb"token|key_.{16}|wake_[0-9a-f]+|request_.+": _ALWAYS,
}
"""The keys there may be, and whether the server is to forget them by itself."""
_GONE: Final = -2

Scores = dict[bytes, float]


@dataclass(slots=True)
class _Lane:
    """What the metadata says of a priority, and what its segments are."""

    count: int
    next_offset: int
    head: int
    tail: int
    tail_count: int
    cuts: list[tuple[int, int, int]]
    """From which offset on, and with which segment first, segments are of which size."""
    held: int
    segments: dict[int, int]
    """Number → length."""

    @property
    def first(self) -> int:
        """The offset of the first message that was never delivered."""
        return self.next_offset - self.count

    def segment_of(self, offset: int) -> tuple[int, int, int]:
        """Return the segment an offset belongs to, where that begins, and where it ends."""
        begun = [cut for cut in self.cuts if cut[0] <= offset] or self.cuts[:1]
        first, number, size = begun[-1]
        ahead = (offset - first) // size
        stop = first + (ahead + 1) * size
        following = [cut[0] for cut in self.cuts if cut[0] > offset]
        return number + ahead, first + ahead * size, min([stop, *following])

    def lengths(self) -> dict[int, int]:
        """Return how long each segment should be."""
        found: dict[int, int] = {}
        offset = self.first
        while offset < self.next_offset:
            number, _, stop = self.segment_of(offset)
            found[number] = min(stop, self.next_offset) - offset
            offset += found[number]
        return found


@dataclass(slots=True)
class _Touched:
    """A message that was touched: what its state says."""

    kind: int
    is_started: bool
    token: int
    priority: int
    not_before_us: int
    cause: int
    group: bytes

    def turn(self, lane: int, offset: int) -> int:
        """Return where in its line it stands."""
        if lane == ASIDE:
            return max(1, self.not_before_us)
        return (TURN_NEW if self.cause == Cause.HELD else TURN_RETURNED) + offset


@dataclass(slots=True)
class _Portrait:
    """All that the server holds of a queue."""

    meta: dict[str, str]
    lanes: dict[int, _Lane]
    lines: set[int]
    touched: dict[bytes, bytes]
    bodies: dict[bytes, bytes]
    ready: dict[int, Scores]
    delayed: Scores
    leases: Scores
    groups: dict[bytes, int]
    held: dict[bytes, Scores]
    dead: Scores
    letters: dict[bytes, bytes]
    kept: dict[bytes, bytes]
    kept_offsets: dict[int, Scores]
    lifetimes_ms: dict[bytes, int] = field(default_factory=dict)
    """Every key's name behind the base → how long it lives; -1 for ever."""

    def number(self, name: str) -> int:
        """Return a number of the metadata, 0 if there is none."""
        return int(self.meta.get(name) or 0)


def audit_queue(store: "RedisStore", name: str) -> list[str]:
    """Return a sentence for each thing that is not as it should be; none if all is well."""
    portrait = _Reader(store, name).portrait()
    if not portrait.meta:
        return [*_audit_keys(portrait), *_audit_removed(portrait)]
    try:
        states = {key: _touched_from(packed) for key, packed in portrait.touched.items()}
    except Damage as damage:
        return [str(damage)]
    return [
        *_audit_keys(portrait),
        *_audit_lanes(portrait),
        *_audit_touched(portrait, states),
        *_audit_places(portrait, states),
        *_audit_groups(portrait, states),
        *_audit_dead(portrait),
        *_audit_kept(portrait),
    ]


def audit_store(store: "RedisStore") -> dict[str, list[str]]:
    """Return what `audit_queue` says of each queue that was used and is not removed."""
    key = names_key(store.namespace, "queue")
    said = cast("Iterable[bytes]", store.calls.command(key, "SMEMBERS", key))
    names = (name.decode(errors="replace") for name in said)
    return {name: audit_queue(store, name) for name in sorted(filter(is_name, names))}


class _Reader:
    """Reads one queue."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        self._calls = store.calls
        self._base = store.base("queue", name)

    def portrait(self) -> _Portrait:
        """Return all there is. What nobody knows, or goes by itself, is looked for apart."""
        names = self._names()
        various = sorted(name for name in names if _VARIOUS.fullmatch(name))
        hashes = [("HGETALL", self._key(name)) for name in _HASHES]
        lines = [("ZRANGE", self._key(name), 0, -1, "WITHSCORES") for name in _ZSETS]
        lifetimes = [("PTTL", self._key(name)) for name in _FIXED]
        said, *answers = self._calls.look_with(
            [*hashes, *lines, *lifetimes], library("audit"), "read", self._base, *various
        )
        contents = dict(zip(_FIXED, answers[: len(_FIXED)], strict=True))
        lifetimes_ms = dict(zip(_FIXED, cast("list[int]", answers[len(_FIXED) :]), strict=True))
        for name, lifetime_ms, content in cast("list[tuple[bytes, int, object]]", said):
            contents[name], lifetimes_ms[name] = content, lifetime_ms
        for name in sorted(names.difference(various, _FIXED)):
            lifetimes_ms[name] = self._lifetime_ms(name)
        there = {name: each for name, each in lifetimes_ms.items() if each != _GONE}
        return _portrait_from(contents, there)

    def _key(self, name: bytes) -> bytes:
        return self._base.encode() + b":" + name

    def _lifetime_ms(self, name: bytes) -> int:
        return cast("int", self._calls.command(self._base, "PTTL", self._key(name)))

    def _names(self) -> set[bytes]:
        """Return what the queue's keys are called behind its base."""
        base = self._key(b"")
        pattern = re.sub(rb"([\\*?\[\]])", rb"\\\1", base) + b"*"
        names: set[bytes] = set()
        cursor = b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            answer = self._calls.command(self._base, *words)
            cursor, keys = cast("tuple[bytes, list[bytes]]", answer)
            names.update(key.removeprefix(base) for key in keys)
            if int(cursor) == 0:
                return names


def _portrait_from(contents: Mapping[bytes, object], lifetimes_ms: dict[bytes, int]) -> _Portrait:
    def pairs(name: bytes) -> dict[bytes, bytes]:
        return _pairs(contents.get(name, []))

    def scores(name: bytes) -> Scores:
        return {member: float(score) for member, score in pairs(name).items()}

    def numbered(prefix: bytes) -> dict[int, bytes]:
        """Return which names have a number behind the prefix."""
        return {
            int(name.removeprefix(prefix)): name
            for name in contents
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }

    meta = {key.decode(): value.decode() for key, value in pairs(b"metadata").items()}
    return _Portrait(
        meta=meta,
        lanes={
            priority: _lane_from(
                meta,
                priority,
                {
                    number: cast("int", contents[name])
                    for number, name in numbered(b"queue_%d_seg_" % priority).items()
                },
            )
            for priority in map(int, scores(b"lanes"))
        },
        lines={int(priority) for priority in scores(b"lines")},
        touched=pairs(b"touched"),
        bodies=pairs(b"bodies"),
        ready={priority: scores(name) for priority, name in numbered(b"ready_").items()},
        delayed=scores(b"delayed"),
        leases=scores(b"leases"),
        groups={key: int(value) for key, value in pairs(b"groups").items()},
        held={
            name.removeprefix(b"held_"): scores(name)
            for name in contents
            if name.startswith(b"held_")
        },
        dead=scores(b"dead"),
        letters=pairs(b"letters"),
        kept=pairs(b"kept"),
        kept_offsets={lane: scores(name) for lane, name in numbered(b"kept_").items()},
        lifetimes_ms=lifetimes_ms,
    )


def _lane_from(meta: Mapping[str, str], priority: int, segments: dict[int, int]) -> _Lane:
    def number(name: str) -> int:
        return int(meta.get(f"queue_{priority}:{name}") or 0)

    return _Lane(
        count=number("count"),
        next_offset=number("next_offset"),
        head=number("head_segment"),
        tail=number("tail_segment"),
        tail_count=number("tail_count"),
        cuts=_cuts_from(meta.get(f"queue_{priority}:cuts"), meta),
        held=number("held"),
        segments=segments,
    )


def _pairs(answer: object) -> dict[bytes, bytes]:
    """Return pairs as a dict, in whichever version of the protocol they came."""
    if isinstance(answer, dict):
        return cast("dict[bytes, bytes]", answer)
    words = cast("list[bytes | list[bytes]]", answer)
    if words and isinstance(words[0], list):
        return dict(cast("list[tuple[bytes, bytes]]", words))
    plain = cast("list[bytes]", words)
    return dict(zip(plain[::2], plain[1::2], strict=True))


def _cuts_from(said: str | None, meta: Mapping[str, str]) -> list[tuple[int, int, int]]:
    if said is None:
        return [(0, 0, max(1, int(meta.get("segment_size") or 0)))]
    cuts = []
    for cut in said.split(","):
        offset, number, size = map(int, cut.split(":"))
        cuts.append((offset, number, max(1, size)))
    return cuts


def _touched_from(packed: bytes) -> _Touched:
    if len(packed) < _STATE.size:
        raise Damage(f"a state of {len(packed)} bytes has no head")
    kind, started, token, _, _, priority, not_before_us, cause, group, _ = _STATE.unpack_from(
        packed
    )
    if kind not in _KINDS:
        raise Damage(f"a state says kind {kind}")
    return _Touched(
        kind=kind,
        is_started=started == 1,
        token=token,
        priority=priority,
        not_before_us=not_before_us,
        cause=cause,
        group=group if group != _NO_GROUP else b"",
    )


def _group_of(item: bytes) -> bytes:
    _, attr = _HEAD.unpack_from(item)
    if not attr & HAS_GROUP:
        return b""
    first = _HEAD.size + (_EXPIRES.size if attr & HAS_TTL else 0)
    return item[first : first + DIGEST_BYTES]


# What must hold ------------------------------------------------------------------------------


def _audit_keys(portrait: _Portrait) -> Iterator[str]:
    for name, lifetime_ms in portrait.lifetimes_ms.items():
        kinds = (lives for each, lives in _NAMES.items() if re.fullmatch(each, name, re.DOTALL))
        lives = next(kinds, None)
        if lives is None:
            yield f"nobody knows the key {name!r}"
        if lives == _NEVER and lifetime_ms >= 0:
            yield f"the server forgets {name!r} in {lifetime_ms} ms"
        if lives == _ALWAYS and lifetime_ms == -1:
            yield f"the server never forgets {name!r}"


def _audit_removed(portrait: _Portrait) -> Iterator[str]:
    allowed = rb"token|request_.*|waiting_.*|wake_.*|key_.*"
    for name in portrait.lifetimes_ms:
        if not re.fullmatch(allowed, name, re.DOTALL):
            yield f"there is no queue, and yet {name!r}"


def _audit_lanes(portrait: _Portrait) -> Iterator[str]:
    size = QueueRules.from_json(portrait.meta.get("rules", "{}")).segment_size
    if portrait.lanes and portrait.number("segment_size") != size:
        yield f"segment_size is {portrait.number('segment_size')}, the rules say {size}"
    if portrait.lanes and "generation" not in portrait.meta:
        yield "there are lanes, and no generation"
    for name in portrait.meta:
        said = re.fullmatch(r"queue_(\d+):.*", name)
        if said and int(said[1]) not in portrait.lanes:
            yield f"{name} is set, and {said[1]} is not among the lanes"
    for key in portrait.lifetimes_ms:
        segment = re.fullmatch(rb"queue_(\d+)_seg_\d+", key)
        if segment and int(segment[1]) not in portrait.lanes:
            yield f"{key!r} is of no lane"
    for priority, lane in portrait.lanes.items():
        for problem in _audit_lane(lane):
            yield f"priority {priority}: {problem}"
        if (lane.count or portrait.ready.get(priority)) and priority not in portrait.lines:
            yield f"priority {priority} has something to deliver and is not among the lines"
    for priority in portrait.lines - set(portrait.lanes):
        yield f"priority {priority} is among the lines and not among the lanes"


def _audit_lane(lane: _Lane) -> Iterator[str]:
    if lane.count != sum(lane.segments.values()):
        yield f"count is {lane.count}, the segments hold {sum(lane.segments.values())}"
    if not 0 <= lane.count <= lane.next_offset:
        yield f"count is {lane.count} of {lane.next_offset} ever pushed"
        return
    if lane.segments != lane.lengths():
        yield f"the segments are {lane.segments}, and should be {lane.lengths()}"
    if not lane.next_offset:
        return
    number, start, _ = lane.segment_of(lane.next_offset - 1)
    if lane.cuts[-1][0] == lane.next_offset:
        number, start, _ = lane.segment_of(lane.next_offset)
    if (lane.tail, lane.tail_count) != (number, lane.next_offset - start):
        yield (
            f"tail_segment is {lane.tail} and has had {lane.tail_count}, "
            f"and should be {number} with {lane.next_offset - start}"
        )
    head = lane.segment_of(lane.first)[0] if lane.count else lane.tail
    if lane.head != head:
        yield f"head_segment is {lane.head}, and should be {head}"


def _audit_touched(portrait: _Portrait, states: dict[bytes, _Touched]) -> Iterator[str]:
    for name in portrait.touched.keys() ^ portrait.bodies.keys():
        has = "a state and no item" if name in portrait.touched else "an item and no state"
        yield f"{name!r} has {has}"
    for name, state in states.items():
        lane, offset = key_from_wire(name)
        if lane == ASIDE:
            if offset >= portrait.number("later:next_offset"):
                yield f"{name!r} was never pushed"
        elif lane not in portrait.lanes or offset >= portrait.lanes[lane].first:
            yield f"{name!r} was touched, and still lies in its lane"
        elif state.priority != lane:
            yield f"{name!r} has priority {state.priority}"
        if name in portrait.letters:
            yield f"{name!r} is alive and a dead letter"
        if name in portrait.bodies and _group_of(portrait.bodies[name]) != state.group:
            yield f"{name!r} has another group than its item says"
        if (state.token > 0) != (state.kind == LEASED) or state.token > portrait.number("token"):
            yield f"{name!r} is {_KINDS[state.kind]} with token {state.token}"


def _audit_places(portrait: _Portrait, states: dict[bytes, _Touched]) -> Iterator[str]:
    """Each message is in one place, the one its state says, with the right score."""
    found: dict[bytes, list[tuple[int, object, object]]] = {}
    for name, score in portrait.leases.items():
        found.setdefault(name, []).append((LEASED, b"", None if score > 0 else score))
    for name, score in portrait.delayed.items():
        found.setdefault(name, []).append((DELAYED, b"", score))
    for priority, scores in portrait.ready.items():
        for name, score in scores.items():
            found.setdefault(name, []).append((READY, priority, score))
    for group, members in portrait.held.items():
        for member, score in members.items():
            found.setdefault(member[27:], []).append((HELD_BACK, group, (score, member[:27])))
    for name in found.keys() | states.keys():
        state = states.get(name)
        places = found.get(name, [])
        expected = [] if state is None else [_place_of(name, state)]
        if places != expected:
            yield f"{name!r} is at {places}, and should be at {expected}"
    in_line = sum(map(len, portrait.ready.values()))
    if portrait.number("in_line") != in_line:
        yield f"in_line is {portrait.number('in_line')}, in line are {in_line}"
    for first, scores in (("lease_first", portrait.leases), ("delayed_first", portrait.delayed)):
        said = portrait.meta.get(first)
        if scores and (not said or int(said) > min(scores.values())):
            yield f"{first} is {said}, the first is {min(scores.values()):.0f}"


def _place_of(name: bytes, state: _Touched) -> tuple[int, object, object]:
    turn = state.turn(*key_from_wire(name))
    if state.kind == LEASED:
        return LEASED, b"", None
    if state.kind == DELAYED:
        return DELAYED, b"", state.not_before_us
    if state.kind == READY:
        return READY, state.priority, turn
    place = (0, turn - TURN_RETURNED) if turn < 0 else (1, turn)
    return HELD_BACK, state.group, (0, b"%010d%d%016d" % (state.priority, *place))


def _audit_groups(portrait: _Portrait, states: dict[bytes, _Touched]) -> Iterator[str]:
    expected: Counter[bytes] = Counter()
    held: Counter[int] = Counter()
    for state in states.values():
        if state.kind == HELD_BACK:
            held[state.priority] += 1
            expected[b"h" + state.group] += 1
        if state.group and state.kind == LEASED:
            expected[b"l" + state.group] += 1
        if state.group and state.is_started:
            expected[b"s" + state.group] += 1
    if portrait.groups != dict(expected):
        yield f"the groups count {portrait.groups}, there are {dict(expected)}"
    if portrait.number("held") != held.total():
        yield f"held is {portrait.number('held')}, held back are {held.total()}"
    for priority, lane in portrait.lanes.items():
        if lane.held != held[priority]:
            yield f"priority {priority}: held is {lane.held}, held back are {held[priority]}"


def _audit_dead(portrait: _Portrait) -> Iterator[str]:
    for name in portrait.dead.keys() ^ portrait.letters.keys():
        has = "a number and no letter" if name in portrait.dead else "a letter and no number"
        yield f"the dead letter {name!r} has {has}"
    for name, packed in portrait.letters.items():
        try:
            letter = letter_of(key_from_wire(name), packed)
        except Damage as damage:
            yield str(damage)
            continue
        if letter.number != portrait.dead.get(name):
            yield f"the dead letter {name!r} is number {letter.number}"
        if letter.number >= portrait.number("dead:next_number"):
            yield f"the dead letter {name!r} has a number nobody gave: {letter.number}"


def _audit_kept(portrait: _Portrait) -> Iterator[str]:
    kept = {key_from_wire(name): item for name, item in portrait.kept.items()}
    listed = {
        (lane, int(offset)) for lane, offsets in portrait.kept_offsets.items() for offset in offsets
    }
    for lane, offset in kept.keys() ^ listed:
        has = "an item and no offset" if (lane, offset) in kept else "an offset and no item"
        yield f"what is kept of {lane}-{offset} has {has}"
    sizes: Counter[int] = Counter()
    for (lane, _), item in kept.items():
        sizes[lane] += len(item)
    for name, said in portrait.meta.items():
        found = re.fullmatch(r"kept_(\d+):bytes", name)
        if found and int(said) != sizes.pop(int(found[1]), 0):
            yield f"{name} is {said}, and what is kept says otherwise"
    for lane, size in sizes.items():
        yield f"{size} bytes are kept of lane {lane}, and not counted"
    for key in portrait.kept.keys() & portrait.touched.keys():
        yield f"{key!r} is kept as settled, and alive"
