"""A queue in the words of its ancestors: `metadata` and `queue_<p>_seg_<n>`.

Segments here are runs of `segment_size` offsets, numbered from the first message ever pushed, so
numbers never start over. What was returned stands at the front of the head segment, which may then
hold more than its size. Files on disk are cut differently; see docs/queues.md.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final, NoReturn

from segue.values import dataclass

METADATA: Final = "metadata"

_SEGMENT: Final = re.compile(r"queue_(0|[1-9][0-9]{0,9})_seg_(0|[1-9][0-9]{0,14})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that waits; without an offset if it has been returned."""

    priority: int
    offset: int | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment of a priority."""

    priority: int
    number: int

    @property
    def key(self) -> str:
        """What it is called."""
        return f"queue_{self.priority}_seg_{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Messages of a priority that wait, and the segments that the first and the last are in."""

    priority: int
    count: int
    head: int
    tail: int


def segment_of(key: str) -> Segment | None:
    """Return the segment that a key names, None if it can name none."""
    found = _SEGMENT.fullmatch(key)
    return None if found is None else Segment(priority=int(found[1]), number=int(found[2]))


def state_of(
    waiting: Sequence[Waiting], *, cursors: Mapping[int, int], segment_size: int
) -> dict[str, object]:
    """Return the state of a queue, in the order its messages would be delivered."""
    spans: list[Span] = []
    segments: dict[int, dict[int, list[object]]] = {}
    for message in waiting:
        offset = cursors[message.priority] if message.offset is None else message.offset
        levels = segments.setdefault(message.priority, {})
        levels.setdefault(offset // segment_size, []).append(item_of(message.body))
    state: dict[str, object] = {}
    for priority, numbered in sorted(segments.items()):
        for number, items in sorted(numbered.items()):
            state[Segment(priority=priority, number=number).key] = items
        count = sum(map(len, numbered.values()))
        spans.append(Span(priority=priority, count=count, head=min(numbered), tail=max(numbered)))
    state[METADATA] = metadata_of(spans, segment_size=segment_size)
    return state


def only(state: dict[str, object], key: str) -> dict[str, object]:
    """Return one key of a state, nothing if there is no such key."""
    return {key: state[key]} if key in state else {}


def metadata_of(spans: Iterable[Span], *, segment_size: int) -> dict[str, object]:
    """Return what the state says of all segments together, by what waits in each priority."""
    by_priority: dict[int, list[Span]] = {}
    for span in spans:
        by_priority.setdefault(span.priority, []).append(span)
    queues = {
        f"queue_{priority}": {
            "metadata": {
                "count": sum(span.count for span in found),
                "head_segment": min(span.head for span in found),
                "tail_segment": max(span.tail for span in found),
            }
        }
        for priority, found in sorted(by_priority.items())
    }
    return {"config": {"segment_size": segment_size}, "queues": queues}


def item_of(body: bytes) -> object:
    """Return a body as JSON would show it: what it says, or its text, or its bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        item: object = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text
    return item


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        _refuse(text)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
