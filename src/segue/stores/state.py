"""A queue in the words of its ancestors: `metadata` and `queue_<p>_seg_<n>`.

Segments here are runs of `segment_size` offsets, numbered from the first message ever pushed, so
numbers never start over. What was returned stands at the front of the head segment, which may then
hold more than its size. Files on disk are cut differently; see docs/queues.md.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that waits; without an offset if it has been returned."""

    priority: int
    offset: int | None
    body: bytes


def state_of(
    waiting: Sequence[Waiting], *, cursors: Mapping[int, int], segment_size: int
) -> dict[str, object]:
    """Return the state of a queue, in the order its messages would be delivered."""
    segments: dict[int, dict[int, list[object]]] = {}
    for message in waiting:
        offset = cursors[message.priority] if message.offset is None else message.offset
        levels = segments.setdefault(message.priority, {})
        levels.setdefault(offset // segment_size, []).append(item_of(message.body))
    state: dict[str, object] = {}
    queues: dict[str, object] = {}
    for priority, numbered in sorted(segments.items()):
        for number, items in sorted(numbered.items()):
            state[f"queue_{priority}_seg_{number}"] = items
        queues[f"queue_{priority}"] = {
            "metadata": {
                "count": sum(map(len, numbered.values())),
                "head_segment": min(numbered),
                "tail_segment": max(numbered),
            }
        }
    state["metadata"] = {"config": {"segment_size": segment_size}, "queues": queues}
    return state


def item_of(body: bytes) -> object:
    """Return a body as JSON would show it: what it says, or its text, or its bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        item: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return item


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
