"""How the whole store stands, live and over time."""

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from segue.errors import AccessDenied, InvalidArgument
from segue.server.access import Grant
from segue.server.call import Call
from segue.server.flow import per_second
from segue.server.history import WHOLE_NUMBERS, Points
from segue.server.picture import NOT_YET, Picture, Row
from segue.server.refusal import Refused
from segue.server.routes.about import about
from segue.server.routing import EVENT_STREAM, LiveStream, Role, Route
from segue.server.task_flow import Crew
from segue.stores.http.wire.overview import (
    DiskJson,
    HealthJson,
    HistoryJson,
    Overview,
    PercentilesJson,
    QueueRow,
    StoreJson,
    TasksJson,
    Totals,
    WorkersJson,
    You,
)

if TYPE_CHECKING:
    from segue.tasks.worker.reports import WorkerReport

QUEUES_SHOWN_MAX: Final = 500
"""How many queues are listed, those in trouble first; all that were looked at count in the totals.
"""
PATIENCE_SECONDS: Final = 0.05
"""How long a request waits for a new look, before it is answered with what is known."""
HISTORY_SECONDS_MIN: Final = 60
HISTORY_SECONDS_MAX: Final = 7 * 86_400

_encode = msgspec.json.Encoder().encode


class Span(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How far back to look, and at which queue; at the whole store if none is named."""

    seconds: int = 3_600
    queue: str | None = None


# Now -------------------------------------------------------------------------------------------


def overview(call: Call) -> Overview:
    """Tell how the whole store stands."""
    call.desk.historian.ask()
    return _overview(call, call.desk.overlook.picture(PATIENCE_SECONDS))


async def live(call: Call) -> LiveStream:
    """Tell how the whole store stands, again and again."""
    call.desk.listeners.require_room()
    return LiveStream(media_type=EVENT_STREAM, pieces=_events(call))


async def _events(call: Call) -> AsyncIterator[bytes]:
    """Yield what is seen, as Server-Sent Events; a sign of life where nothing new was."""
    desk, listeners = call.desk, call.desk.listeners
    listeners.join()
    try:
        look = partial(desk.overlook.picture, PATIENCE_SECONDS)
        picture: Picture | None = await call.in_thread(look)
        told: Picture | None = None
        while picture is not None and not call.is_gone() and not desk.waiting.is_closed:
            said = b": alive\n\n" if picture is told else listeners.said(picture, call.grant)
            if said is None:
                said = await call.in_thread(partial(_event, call, picture))
                listeners.note(picture, call.grant, said)
            yield said
            told = picture
            picture = await listeners.next()
    except Refused:  # Too many requests are under way; whoever listens may come again.
        return
    finally:
        listeners.leave()
        call.look_no_more()


def _event(call: Call, picture: Picture) -> bytes:
    call.desk.historian.ask()
    said = _encode(_overview(call, picture))
    return b"event: overview\nid: %d\ndata: %b\n\n" % (picture.at_us, said)


def _overview(call: Call, picture: Picture) -> Overview:
    """Return of what was seen what the token is good for."""
    grant = call.grant
    rows = [row for row in picture.rows if grant.covers(row.name)]
    others = sum(map(grant.covers, picture.others))
    crew = picture.crew
    server, health = about(call), call.desk.operations.watchdog.health()
    return Overview(
        at_us=picture.at_us,
        store=StoreJson(
            kind=cast("Literal['directory', 'redis']", server.store),
            durable=server.durable,
            version=server.version,
        ),
        you=_you(call),
        health=HealthJson(status=health.status, reason=health.reason or ""),
        disk=_disk(picture, rows, grant),
        syncs_per_second=picture.syncs_per_second,
        totals=_totals(rows),
        tasks=None if crew is None else _tasks(crew, grant),
        workers=None if crew is None else _workers(crew, grant),
        queues=[_row(row) for row in _listed(rows)],
        more_queues=max(0, len(rows) - QUEUES_SHOWN_MAX) + others,
    )


def _you(call: Call) -> You:
    grant = call.grant
    return You(
        name=grant.name,
        roles=sorted(role.value for role in grant.roles),
        names=list(grant.patterns),
        may_act=grant.is_admin and not call.desk.guard.is_read_only,
    )


def _disk(picture: Picture, rows: Iterable[Row], grant: Grant) -> DiskJson | None:
    if picture.disk is None:
        return None
    queue_bytes = sum(row.standing.size_bytes for row in rows if row.standing is not None)
    topic_bytes = sum(size for name, size in picture.topic_bytes.items() if grant.covers(name))
    return DiskJson(
        total_bytes=picture.disk.total_bytes,
        free_bytes=picture.disk.free_bytes,
        store_bytes=queue_bytes + topic_bytes,
    )


def _listed(rows: list[Row]) -> list[Row]:
    """Return by name as many as are listed, and none left out that is worse than one of them."""
    if len(rows) <= QUEUES_SHOWN_MAX:
        return rows
    return sorted(sorted(rows, key=_trouble)[:QUEUES_SHOWN_MAX], key=lambda row: row.name)


def _trouble(row: Row) -> tuple[bool, bool, bool, float]:
    """Return what sorts a queue the further to the front, the more it wants to be looked at."""
    standing = row.standing
    if standing is None:
        return row.problem in ("", NOT_YET), True, True, 0.0
    return (
        not row.problem,
        not standing.is_paused,
        not standing.dead,
        -(standing.oldest_seconds or 0.0),
    )


def _row(row: Row) -> QueueRow:
    standing, flow = row.standing, row.flow
    if standing is None:
        return QueueRow(
            name=row.name,
            ready=0,
            delayed=0,
            leased=0,
            dead=0,
            paused=False,
            oldest_seconds=None,
            in_per_second=None,
            out_per_second=None,
            failed_per_second=None,
            size_bytes=0,
            problem=row.problem,
        )
    seconds = row.flow_seconds
    return QueueRow(
        name=row.name,
        ready=standing.ready,
        delayed=standing.delayed,
        leased=standing.leased,
        dead=standing.dead,
        paused=standing.is_paused,
        oldest_seconds=standing.oldest_seconds,
        in_per_second=None if flow is None else per_second(flow.came, seconds),
        out_per_second=None if flow is None else per_second(flow.went, seconds),
        failed_per_second=None if flow is None else per_second(flow.failed, seconds),
        size_bytes=standing.size_bytes,
        problem=row.problem,
    )


def _totals(rows: Sequence[Row]) -> Totals:
    known = [(row, row.standing) for row in rows if row.standing is not None]
    flows = [(row.flow, row.flow_seconds) for row, _ in known if row.flow is not None]
    oldest, name = max(
        ((each.oldest_seconds or 0.0, row.name) for row, each in known if _waits(row)),
        default=(None, ""),
    )
    return Totals(
        ready=sum(each.ready for _, each in known),
        delayed=sum(each.delayed for _, each in known),
        leased=sum(each.leased for _, each in known),
        dead=sum(each.dead for _, each in known),
        paused=sum(each.is_paused for _, each in known),
        in_per_second=_sum_per_second([(flow.came, seconds) for flow, seconds in flows]),
        out_per_second=_sum_per_second([(flow.went, seconds) for flow, seconds in flows]),
        failed_per_second=_sum_per_second([(flow.failed, seconds) for flow, seconds in flows]),
        oldest_seconds=oldest,
        oldest_queue=name,
        size_bytes=sum(each.size_bytes for _, each in known),
    )


def _waits(row: Row) -> bool:
    return row.standing is not None and row.standing.oldest_seconds is not None


def _sum_per_second(counts: Sequence[tuple[int, float]]) -> float | None:
    """Return the rates of several queues together; None if none is known."""
    return round(sum(count / seconds for count, seconds in counts), 3) if counts else None


def _tasks(crew: Crew, grant: Grant) -> TasksJson:
    reports = _covered(crew, grant)
    done = crew.sum_of(reports)
    return TasksJson(
        wait=msgspec.convert(done.wait, PercentilesJson, from_attributes=True),
        run=msgspec.convert(done.run, PercentilesJson, from_attributes=True),
        per_second=round(sum(report.per_second for report in reports), 3),
        counts=dict(done.counts),
    )


def _workers(crew: Crew, grant: Grant) -> WorkersJson:
    reports = _covered(crew, grant)
    return WorkersJson(
        count=len(reports),
        slots=sum(report.size for report in reports),
        busy=sum(report.busy for report in reports),
    )


def _covered(crew: Crew, grant: Grant) -> "list[WorkerReport]":
    return [report for report in crew.reports if all(map(grant.covers, report.queues))]


# Over time -------------------------------------------------------------------------------------


def history(call: Call) -> HistoryJson:
    """Tell how the store, or one queue, stood over time."""
    asked, desk, grant = call.query(Span), call.desk, call.grant
    if not HISTORY_SECONDS_MIN <= asked.seconds <= HISTORY_SECONDS_MAX:
        raise InvalidArgument(
            f"seconds must be from {HISTORY_SECONDS_MIN} to {HISTORY_SECONDS_MAX}: {asked.seconds}"
        )
    desk.historian.ask()
    known, now_us = desk.historian.history, desk.historian.now_us
    if asked.queue is not None:
        if not grant.covers(asked.queue):
            raise AccessDenied(f"the token is not for {asked.queue[:200]}")
        return _history(asked.queue, known.of_queue(asked.queue, asked.seconds, now_us))
    if grant.is_limited:
        return _history(None, known.of_queues(grant.covers, asked.seconds, now_us))
    return _history(None, known.of_store(asked.seconds, now_us))


def _history(queue: str | None, points: Points) -> HistoryJson:
    unknown: list[float | None] = [None] * len(points.at_us)
    said: dict[str, object] = {
        "queue": queue,
        "step_seconds": points.step_seconds,
        "at_us": points.at_us,
    }
    for name in HistoryJson.__struct_fields__[len(said) :]:
        values = points.columns.get(name, unknown)
        if name in WHOLE_NUMBERS:
            values = [None if value is None else int(value) for value in values]
        said[name] = values
    return msgspec.convert(said, HistoryJson)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/overview",
        summary="Tell how the whole store stands: queues, rates, workers, disk",
        role=Role.READ,
        about="store",
        handle=overview,
        answer=Overview,
    ),
    Route(
        method="GET",
        path="/overview/live",
        summary="Tell the same about every second, as events",
        role=Role.READ,
        about="store",
        handle_async=live,
        gives=(EVENT_STREAM,),
    ),
    Route(
        method="GET",
        path="/overview/history",
        summary="Tell how the store, or one queue, stood over time",
        role=Role.READ,
        about="store",
        handle=history,
        query=Span,
        answer=HistoryJson,
        errors=(InvalidArgument, AccessDenied),
    ),
)
