"""What a queue is made of: keys, tasks, causes."""

from collections import Counter
from typing import Final

from segue.errors import InvalidArgument, InvalidName
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.stores.http.wire.breakdown import (
    Breakdown,
    CauseCount,
    KeyShare,
    ReturnedCount,
    TaskShare,
)

SHOWN_MAX: Final = 20
"""How many keys, tasks, causes and reasons are shown: those with most messages."""
CAUSES_SECONDS: Final = 0.05
"""How long to wait for the causes, once the rest is known."""


def breakdown(call: Call) -> Breakdown:
    """Tell what waits, and why others do not."""
    queue = call.queue
    has_dead = queue.count().dead > 0
    if has_dead:
        call.desk.letter_groups.ask_for(queue.name)
    estimate = call.desk.estimates.of(call.store, queue)
    return Breakdown(
        sampled=estimate.sampled,
        of=estimate.of,
        is_exact=estimate.is_exact,
        keys=[
            KeyShare(key=key, count=count, share=_share(count, estimate.of))
            for key, count in estimate.keys.most_common(SHOWN_MAX)
        ],
        tasks=[
            TaskShare(task=task, count=count, share=_share(count, estimate.of))
            for task, count in estimate.tasks.most_common(SHOWN_MAX)
        ],
        causes=_causes(call, queue.name) if has_dead else [],
        returned=[
            ReturnedCount(reason=reason, count=count)
            for reason, count in estimate.returned.most_common(SHOWN_MAX)
        ],
    )


def _causes(call: Call, name: str) -> list[CauseCount]:
    counts: Counter[str] = Counter()
    for group in call.desk.letter_groups.look(name, wait_seconds=CAUSES_SECONDS).groups:
        counts[group.cause] += group.count
    return [CauseCount(cause=cause, count=count) for cause, count in counts.most_common(SHOWN_MAX)]


def _share(count: int, of: int) -> float:
    return min(1.0, count / of) if of else 0.0


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/queues/{queue}/breakdown",
        summary="Tell what a queue is made of, judged by some of what waits",
        role=Role.READ,
        about="queues",
        handle=breakdown,
        answer=Breakdown,
        errors=(InvalidArgument, InvalidName),
    ),
)
