"""`segue queue pause`, `resume`, `purge`, `rm` and `replay`: what is done to a whole queue."""

from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, show
from segue.cli.queue.take import FromOption, ToOption, bound_from
from segue.cli.store_arguments import (
    PriorityOption,
    QueueArgument,
    StoreArgument,
    YesOption,
    ask_first,
    existing_queue,
    opened_queue,
    opened_store,
    require_yes,
)


def pause(url: StoreArgument, name: QueueArgument, as_json: JsonOption = False) -> None:
    """Deliver nothing until 'resume'.

    That holds durably and for everybody. Pushing goes on.

    \b
    Example:
      segue queue pause data mail
    """
    with opened_queue(url, name) as queue:
        queue.pause()
    show(Facts(items=[(Column("queue"), name), (Column("paused"), True)]), as_json=as_json)


def resume(url: StoreArgument, name: QueueArgument, as_json: JsonOption = False) -> None:
    """Deliver again.

    \b
    Example:
      segue queue resume data mail
    """
    with opened_queue(url, name) as queue:
        queue.resume()
    show(Facts(items=[(Column("queue"), name), (Column("paused"), False)]), as_json=as_json)


def purge(
    url: StoreArgument, name: QueueArgument, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Drop all messages that are ready or delayed. What is leased or dead stays.

    Asks before anything is dropped; without a terminal --yes is needed.

    \b
    Example:
      segue queue purge data mail --yes
    """
    require_yes(yes, as_json=as_json)
    with opened_queue(url, name) as queue:
        counts = queue.count()
        ask_first(f"Drop {counts.ready + counts.delayed:,} messages of {name}?", yes=yes)
        purged = queue.purge()
    show(Facts(items=[(Column("purged", Kind.COUNT), purged)]), as_json=as_json)


def rm(
    url: StoreArgument, name: QueueArgument, yes: YesOption = False, as_json: JsonOption = False
) -> None:
    """Delete a queue with all it holds.

    Leases, dead letters and rules go with it. Asks before anything is deleted; without a terminal
    --yes is needed. Nobody else should be using the queue.

    \b
    Example:
      segue queue rm data mail --yes
    """
    require_yes(yes, as_json=as_json)
    with opened_store(url) as store:
        counts = existing_queue(store, name).count()
        held = counts.total + counts.dead
        ask_first(f"Delete {name} with its {held:,} messages?", yes=yes)
        removed = store.remove_queue(name)
    show(Facts(items=[(Column("queue"), name), (Column("removed"), removed)]), as_json=as_json)


def replay(
    url: StoreArgument,
    name: QueueArgument,
    *,
    priority: PriorityOption = None,
    start: FromOption = None,
    stop: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push what 'segue queue history' shows once more.

    Messages come again with an attempt above 1. What is still waiting is pushed again, too.

    \b
    Example:
      segue queue replay data mail --priority 0 --from 100 --to 200
    """
    begin, end = bound_from(start, "--from"), bound_from(stop, "--to")
    with opened_queue(url, name) as queue:
        replayed = queue.replay(priority=priority, start=begin, stop=end)
    show(Facts(items=[(Column("replayed", Kind.COUNT), replayed)]), as_json=as_json)
