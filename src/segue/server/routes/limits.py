"""Every queue's rules and whether it is paused."""

from functools import partial
from typing import Final

from segue.delivery.rules import QueueRules
from segue.errors import InvalidArgument, LogClosed, SegueError, StoreClosed, StoreUnavailable
from segue.server.call import Call
from segue.server.open_queues import may_look_into
from segue.server.paging import NamedPage, page_of
from segue.server.routing import Role, Route
from segue.stores.contract import Counts, Queue
from segue.stores.file.absent import AbsentQueue
from segue.stores.file.queue import FileQueue
from segue.stores.http.problems import problem_of
from segue.stores.http.wire.limits import LimitsRow, LimitsRows
from segue.stores.http.wire.rules import QueueRulesJson

QUEUES_SHOWN_MAX: Final = 500
"""How many queues one page shows."""
NO_ROOM: Final = "not looked at: as many queues are open as the limit of open files leaves room for"


class QueuePage(NamedPage):
    """Which queues to tell of: those behind `after`, in their order."""

    limit: int = 100


def overview(call: Call) -> LimitsRows:
    """List queues, what their rules are and how much of them is used up."""
    names = [name for name in call.store.queues() if call.grant.covers(name)]
    found, following = page_of(names, call.query(QueuePage), QUEUES_SHOWN_MAX, partial(_row, call))
    return LimitsRows(queues=found, next=following)


def _row(call: Call, name: str) -> LimitsRow | None:
    if not may_look_into(call.store, name):
        return LimitsRow(name=name, rules=QueueRulesJson(), problem=NO_ROOM)
    try:
        queue = call.desk.queue(name)
        if isinstance(queue, AbsentQueue):
            return None
        rules, paused, counts = _facts(queue)
    except (StoreClosed, LogClosed):
        call.desk.forget_queue(name)  # Removed meanwhile; the next who asks opens it anew.
        return None
    except StoreUnavailable:
        raise
    except SegueError as error:
        return LimitsRow(name=name, rules=QueueRulesJson(), problem=problem_of(error).detail)
    return LimitsRow(
        name=name,
        paused=paused,
        rules=QueueRulesJson.of(rules),
        leased=counts.leased,
        capacity_used=None if rules.capacity is None else counts.total / rules.capacity,
    )


def _facts(queue: Queue) -> tuple[QueueRules, bool, Counts]:
    """Return a queue's rules, whether it is paused, and how many messages it has."""
    if isinstance(queue, FileQueue):
        core = queue._core
        with core.turn():
            return core.ledger.rules, core.ledger.paused, queue._inspection.counts()
    stats = queue.stats()
    return queue.rules, stats.paused, stats.counts


ROUTES: Final = (
    Route(
        method="GET",
        path="/overview/limits",
        summary="List the rules of queues, and how much of them is used up",
        role=Role.READ,
        about="queues",
        handle=overview,
        query=QueuePage,
        answer=LimitsRows,
        errors=(InvalidArgument,),
    ),
)
