"""Workers: which are there, what they are at, and which fell silent."""

from typing import TYPE_CHECKING, Final

import msgspec

from segue.server.call import Call
from segue.server.routes.tasks import NOT_INSTALLED, asking
from segue.server.routing import Role, Route
from segue.stores.http.wire.tasks import WorkerJson, Workers

if TYPE_CHECKING:
    from segue.tasks.worker.reports import WorkerReport


def workers(call: Call) -> Workers:
    """Tell which workers are there, and which of late fell silent."""
    tasks = call.desk.tasks
    _ = tasks.desk  # Raises ExtraMissing.
    from segue.tasks.worker.reports import read_reports

    now_us = tasks.clock()

    def told(reports: "list[WorkerReport]") -> list[WorkerJson]:
        return [
            msgspec.convert(report, WorkerJson, from_attributes=True)
            for report in reports
            if all(map(call.grant.covers, report.queues))
        ]

    return Workers(
        workers=told(read_reports(call.store, now_us)), silent=told(tasks.silent.reports(now_us))
    )


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/workers",
        summary="Tell which workers are there, what they are at, and which fell silent of late",
        role=Role.READ,
        about="tasks",
        handle_async=asking(workers),
        answer=Workers,
        statuses=(NOT_INSTALLED,),
    ),
)
