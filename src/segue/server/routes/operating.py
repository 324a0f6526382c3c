"""How the server is: health, metrics, and what was done by those who may do everything."""

from functools import partial
from itertools import islice
from typing import Final

import msgspec

from segue.errors import InvalidArgument
from segue.server import metrics
from segue.server.access import AUDIT_TOPIC
from segue.server.audit import Entry, page_of
from segue.server.call import Call
from segue.server.flow import Standing
from segue.server.health import Health
from segue.server.refusal import Refused
from segue.server.routing import Reply, Role, Route
from segue.stores.http.wire.base import Answer

ENTRIES_MAX: Final = 1_000
"""How many acts one page shows."""
PATIENCE_SECONDS: Final = 2.0
"""How long metrics wait for a new look at the queues, before they tell what is known."""
_NO_STORE: Final = ((b"cache-control", b"no-store"),)


class Page(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which acts to list: those behind `after`, or before `before`, or the last ones."""

    after: int | None = None
    before: int | None = None
    limit: int = 100


class Acts(Answer):
    """Acts, newest last."""

    entries: list[Entry]
    next: int | None
    """The `after` of the next page: the offset of the last act here."""
    before: int | None
    """The `before` of the page of older ones; None if there are none."""


async def health(call: Call) -> Reply:
    """Tell whether the server gets anything done."""
    return _told(call.desk.operations.watchdog.health())


async def live(call: Call) -> Reply:
    """Tell whether starting the server anew would help."""
    watchdog = call.desk.operations.watchdog
    found = watchdog.health()
    found.status = "stuck" if watchdog.is_stuck else "ok"
    return _told(found)


async def ready(call: Call) -> Reply:
    """Tell whether requests make sense now."""
    found = call.desk.operations.watchdog.health()
    if call.desk.operations.is_ending:
        found = Health(status="ending", reason="the server is about to end")
    return _told(found)


def _told(found: Health) -> Reply:
    return Reply(
        body=msgspec.json.encode(found),
        status=200 if found.status == "ok" else 503,
        headers=_NO_STORE,
    )


async def show_metrics(call: Call) -> Reply:
    """Tell what Prometheus collects."""
    desk = call.desk
    operations = desk.operations
    gauges = {
        "connections": ("Connections that are open.", operations.connections()),
        "waiting": ("Requests that wait for a message.", desk.waiting.count),
        "sessions": ("What is held for clients between requests.", desk.sessions.count),
        "remembered_requests": ("Answers kept for requests that repeat.", desk.requests.count),
        "loop_lag_seconds": ("How late the loop was.", operations.watchdog.loop_lag_seconds),
    }
    counters: dict[str, tuple[str, float]] = {}
    if operations.syncs is not None:
        counters["syncs"] = ("Files written through to the device.", operations.syncs())
    queues = await call.in_thread(partial(_depths, call))
    snapshot = metrics.Snapshot(
        series=operations.requests.series, gauges=gauges, counters=counters, queues=queues
    )
    body = await call.in_thread(partial(metrics.render, snapshot))
    return Reply(body=body, media_type=metrics.MEDIA_TYPE, headers=_NO_STORE)


def _depths(call: Call) -> dict[str, Standing]:
    """Return how the first queues stand, by the look that all share: one may hang."""
    rows = call.desk.overlook.picture(PATIENCE_SECONDS).rows
    known = (
        (row.name, row.standing)
        for row in rows
        if row.standing is not None and call.grant.covers(row.name)
    )
    return dict(islice(known, metrics.QUEUES_MAX))


def audit(call: Call) -> Acts:
    """List what was done."""
    asked = call.query(Page)
    if not 1 <= asked.limit <= ENTRIES_MAX:
        raise InvalidArgument(f"limit must be from 1 to {ENTRIES_MAX}: {asked.limit}")
    if not call.grant.covers(AUDIT_TOPIC):
        raise Refused(403, "access_denied", f"the token is not for {AUDIT_TOPIC}")
    if asked.after is not None and asked.before is not None:
        raise InvalidArgument("after and before exclude each other: a page goes on one way")
    page = page_of(call.store, after=asked.after, before=asked.before, limit=asked.limit)
    last = page.entries[-1].offset if page.entries else asked.after
    return Acts(entries=page.entries, next=last, before=page.before)


ROUTES: Final = (
    Route(
        method="GET",
        path="/health",
        summary="Tell when the store last answered",
        role=Role.NOBODY,
        about="operating",
        handle_async=health,
        answer=Health,
        statuses=(503,),
        is_absolute=True,
    ),
    Route(
        method="GET",
        path="/live",
        summary="Tell whether the server gets on: 503 if starting it anew may help",
        role=Role.NOBODY,
        about="operating",
        handle_async=live,
        answer=Health,
        statuses=(503,),
        is_absolute=True,
    ),
    Route(
        method="GET",
        path="/ready",
        summary="Tell whether to send requests here: 503 while the server ends",
        role=Role.NOBODY,
        about="operating",
        handle_async=ready,
        answer=Health,
        statuses=(503,),
        is_absolute=True,
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="Tell what Prometheus collects",
        role=Role.READ,
        about="operating",
        handle_async=show_metrics,
        gives=("text/plain",),
        is_absolute=True,
    ),
    Route(
        method="GET",
        path="/audit",
        summary="List what was done with the role admin, newest last; before goes back in time",
        role=Role.ADMIN,
        about="operating",
        handle=audit,
        query=Page,
        answer=Acts,
        errors=(InvalidArgument,),
    ),
)
