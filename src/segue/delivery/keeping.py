"""Which settled messages are kept for replay, by the rules of their queue."""

from collections.abc import Sequence

from segue.delivery.rules import QueueRules


def kept_from(
    segments: Sequence[tuple[int, int, int]],
    *,
    floor: int,
    rules: QueueRules,
    now_us: int,
) -> int:
    """Return the offset from which on everything is kept.

    `segments` are the end offset, size in bytes and last time of each, oldest first. Only what lies
    below `floor` is settled; of that, what is older than the rules keep or beyond the bytes they
    keep may go.
    """
    settled = [segment for segment in segments if segment[0] <= floor]
    settled_bytes = sum(size_bytes for _, size_bytes, _ in settled)
    kept = 0
    for end_offset, size_bytes, last_time_us in settled:
        is_old = (
            rules.keep_seconds is not None
            and now_us - last_time_us > rules.keep_seconds * 1_000_000
        )
        is_much = rules.keep_bytes is not None and settled_bytes > rules.keep_bytes
        if not is_old and not is_much:
            break
        settled_bytes -= size_bytes
        kept = end_offset
    return kept
