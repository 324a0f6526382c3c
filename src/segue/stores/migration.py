"""Queues in the words of their ancestors, read and written: pure, bytes and files stay outside.

    v3   {"queue_0": [...], "metadata": {"queues": {"queue_0": {"metadata": {"count": N}}}}}
    v4   {"queue_0_seg_0": [...], "queue_0_seg_1": [...], "metadata": {"config": {...}, "queues":
         {"queue_0": {"metadata": {"count": N, "head_segment": 0, "tail_segment": 1}}}}}

Segments are trusted and metadata is checked against them: where the two disagree, all items count
and the disagreement is reported. Items that were out on a lock (`metadata._active_lock`) come first
in their priority, where their lock would have returned them.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final, Literal, cast

from segue.delivery.priority import PRIORITY_MAX
from segue.errors import InvalidArgument
from segue.values import dataclass

Format = Literal["v3", "v4"]

METADATA: Final = "metadata"
ACTIVE_LOCK: Final = "_active_lock"
RANGES_SHOWN_MAX: Final = 8
"""How many runs of segments a mismatch names."""

_NUMBER: Final = r"(0|[1-9]\d{0,17})"
LIST: Final = re.compile(f"queue_{_NUMBER}", re.ASCII)
SEGMENT: Final = re.compile(f"queue_{_NUMBER}_seg_{_NUMBER}", re.ASCII)


class UnknownState(InvalidArgument):
    """What was to be imported is the state of no queue; nothing was pushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Something that metadata says and segments do not, or the other way round."""

    key: str
    what: str
    stated: str | int | None
    found: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedState:
    """The items of a queue by priority, in the order they are to be delivered."""

    format: Format
    segment_size: int | None
    items: Mapping[int, tuple[object, ...]]
    mismatches: tuple[Mismatch, ...]
    returned: int
    """How many of the items were out on a lock."""

    @property
    def count(self) -> int:
        """How many items there are."""
        return sum(map(len, self.items.values()))


@dataclass(slots=True)
class Found:
    """What the keys of a state hold."""

    lists: dict[int, list[object]] = field(default_factory=dict)
    segments: dict[int, dict[int, list[object]]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def priorities(self) -> list[int]:
        return sorted(self.lists.keys() | self.segments.keys())

    def items(self, priority: int) -> list[object]:
        """Return the items of a priority: a list of the old format is older than any segment."""
        items = list(self.lists.get(priority, ()))
        for _, segment in sorted(self.segments.get(priority, {}).items()):
            items += segment
        return items


def parse_state(text: bytes) -> object:
    """Return an exported state as JSON says it. Raises UnknownState if it is none."""
    try:
        document: object = json.loads(
            text, object_pairs_hook=_without_loss, parse_constant=_no_constant
        )
    except UnknownState:
        raise
    except (ValueError, RecursionError) as error:
        raise UnknownState(f"not the state of a queue: it is no JSON: {error}") from error
    return document


def _no_constant(name: str) -> object:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def read_state(document: object) -> ImportedState:
    """Return what an exported state holds. Raises UnknownState if it is neither v3 nor v4."""
    if not isinstance(document, dict):
        raise UnknownState("not the state of a queue: it is no JSON object")
    found = _sorted_out(document)
    metadata = document.get(METADATA)
    if not found.lists and not found.segments and not has_queues(metadata):
        raise UnknownState(
            "not the state of a queue: it has neither queue_<priority> nor "
            "queue_<priority>_seg_<number> nor metadata with queues"
        )
    returned = locked_items(metadata)
    items: dict[int, tuple[object, ...]] = {}
    for priority in sorted({*found.priorities(), *returned}):
        listed = tuple(returned.get(priority, [])) + tuple(found.items(priority))
        if listed:
            items[priority] = listed
    return ImportedState(
        format="v3" if found.lists and not found.segments else "v4",
        segment_size=segment_size_in(metadata),
        items=items,
        mismatches=tuple(mismatches_of(found, metadata)),
        returned=sum(map(len, returned.values())),
    )


def body_of(item: object) -> bytes:
    """Return the body that shows as `item` in the state of a queue."""
    if isinstance(item, dict) and item.keys() == {"base64"}:
        data = _bytes_of(item["base64"])
        if data is not None:
            return data
    if isinstance(item, str) and not _is_json(item):
        try:
            return item.encode()
        except UnicodeEncodeError:  # Half a character: JSON can say it, UTF-8 cannot.
            pass
    try:
        return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(item, separators=(",", ":")).encode()


def old_state(state: Mapping[str, object]) -> dict[str, object]:
    """Return a v4 state as v3, for those who must go back."""
    read = read_state(dict(state))
    lists: dict[str, object] = {
        f"queue_{priority}": list(items) for priority, items in read.items.items()
    }
    queues = {
        f"queue_{priority}": {METADATA: {"count": len(items)}}
        for priority, items in read.items.items()
    }
    return {**lists, METADATA: {"queues": queues}}


# Reading -------------------------------------------------------------------------------------


def _without_loss(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object, unless that would forget one of two lists of items."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        for name in made:
            if names.count(name) > 1 and (LIST.fullmatch(name) or SEGMENT.fullmatch(name)):
                raise UnknownState(f"{name} is there twice")
    return made


def _sorted_out(document: dict[object, object]) -> Found:
    found = Found()
    for key, value in document.items():
        name = str(key)
        if match := SEGMENT.fullmatch(name):
            segments = found.segments.setdefault(priority_from_name(name, match[1]), {})
            segments[int(match[2])] = _items(name, value)
        elif match := LIST.fullmatch(name):
            found.lists[priority_from_name(name, match[1])] = _items(name, value)
        elif name != METADATA:
            found.unknown.append(name)
    return found


def priority_from_name(name: str, text: str) -> int:
    """Return the priority that the name of a list says. Raises UnknownState."""
    number = int(text)
    if number > PRIORITY_MAX:
        raise UnknownState(f"{name}: priorities go up to {PRIORITY_MAX}")
    return number


def _items(name: str, value: object) -> list[object]:
    if value is None:
        return []  # How some stores show a key that was deleted.
    if not isinstance(value, list):
        raise UnknownState(f"{name} is no list of items")
    return cast("list[object]", value)


def has_queues(metadata: object) -> bool:
    """Tell whether the metadata tells of queues, be they empty."""
    return isinstance(_at(metadata, "queues"), dict)


def segment_size_in(metadata: object) -> int | None:
    """Return how many items a segment had, if the metadata says so."""
    size = _at(_at(metadata, "config"), "segment_size")
    return size if type(size) is int and size > 0 else None


def locked_items(metadata: object) -> dict[int, list[object]]:
    """Return the items that were out on a lock, by priority. Raises UnknownState."""
    lock = _at(metadata, ACTIVE_LOCK)
    if lock is None:
        return {}
    listed = _at(lock, "items_with_priority")
    returned: dict[int, list[object]] = {}
    for entry in listed if isinstance(listed, list) else [None]:
        priority = _at(entry, "priority")
        if not isinstance(entry, dict) or "item" not in entry or type(priority) is not int:
            raise UnknownState(
                f"{METADATA}.{ACTIVE_LOCK} holds items that cannot be read: "
                'each must be {"item": ..., "priority": ...}'
            )
        if not 0 <= priority <= PRIORITY_MAX:
            raise UnknownState(f"{METADATA}.{ACTIVE_LOCK}: no priority {priority}")
        returned.setdefault(priority, []).append(entry["item"])
    return returned


def _at(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


# Checking ------------------------------------------------------------------------------------


def mismatches_of(found: Found, metadata: object) -> Iterator[Mismatch]:
    """Yield where the metadata and what was found disagree."""
    for name in found.unknown:
        yield Mismatch(key=name, what="unknown key, left out", stated=None, found=None)
    size = _at(_at(metadata, "config"), "segment_size")
    if found.segments and segment_size_in(metadata) is None:
        yield Mismatch(key=METADATA, what="segment_size", stated=_shown(size), found=None)
    queues = _at(metadata, "queues")
    stated = queues if isinstance(queues, dict) else {}
    for priority in found.priorities():
        name = f"queue_{priority}"
        if found.lists.get(priority) and found.segments.get(priority):
            yield Mismatch(key=name, what="both formats", stated=None, found=None)
        entry = _at(stated.get(name), METADATA)
        segments = {
            number: items for number, items in found.segments.get(priority, {}).items() if items
        }
        yield from _count_mismatches(name, entry, len(found.items(priority)))
        if segments:
            yield from _pointer_mismatches(name, entry, found.segments[priority])
    for name, queue in stated.items():
        match = LIST.fullmatch(str(name))
        if match is None or int(match[1]) not in found.priorities():
            yield from _count_mismatches(str(name), _at(queue, METADATA), 0)


def _count_mismatches(name: str, entry: object, found: int) -> Iterator[Mismatch]:
    stated = _at(entry, "count")
    # A drained queue has no entry any more, which says the same as a count of 0.
    if (0 if entry is None else stated) != found or isinstance(stated, bool):
        yield Mismatch(key=name, what="count", stated=_shown(stated), found=found)


def _pointer_mismatches(
    name: str, entry: object, segments: dict[int, list[object]]
) -> Iterator[Mismatch]:
    head, tail = _at(entry, "head_segment"), _at(entry, "tail_segment")
    found = _ranges(number for number, items in segments.items() if items)
    if type(head) is not int or type(tail) is not int:
        stated = None if head is None and tail is None else f"{_shown(head)} to {_shown(tail)}"
        yield Mismatch(key=name, what="segments", stated=stated, found=found)
        return
    is_outside = any(items and not head <= number <= tail for number, items in segments.items())
    inside_count = sum(head <= number <= tail for number in segments)
    if is_outside or inside_count != tail - head + 1:
        yield Mismatch(key=name, what="segments", stated=f"{head} to {tail}", found=found)


def _ranges(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [
        str(first) if first == last else f"{first} to {last}"
        for first, last in runs[:RANGES_SHOWN_MAX]
    ]
    return ", ".join(shown + ["…"] * (len(runs) > RANGES_SHOWN_MAX))


def _shown(value: object) -> str | int | None:
    if value is None or type(value) is int:
        return value
    return value if isinstance(value, str) else json.dumps(value)


# Bodies --------------------------------------------------------------------------------------


def _bytes_of(text: object) -> bytes | None:
    """Return the bytes that `text` encodes, if they are such as only base64 can show."""
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        data.decode()
    except UnicodeDecodeError:
        # In exactly this spelling: any other is somebody's own item that looks like it.
        return data if base64.b64encode(data).decode() == text else None
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
