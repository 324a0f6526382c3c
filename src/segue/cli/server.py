"""What can be said of a store on a server as a whole: shared by `info` and `verify`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

import typer

from segue.cli.findings import Finding
from segue.cli.output import Column, Facts, Kind, Rows, Value
from segue.cli.places import is_segue_server, without_passwords
from segue.cli.store_arguments import opened_store

if TYPE_CHECKING:
    from segue.stores.contract import Store
    from segue.stores.http.store import HttpStore
    from segue.stores.redis.store import RedisStore

_VERSIONS: Final = ("valkey_version", "redis_version")
"""The more exact one first: Valkey says under the other which Redis it is compatible with."""
_AUDIT_COLUMNS: Final = (
    Column("store"),
    Column("queue"),
    Column("state"),
    Column("problems", Kind.COUNT),
)

Problems = dict[str, list[str]]
"""What is wrong with each queue."""


def server_facts(url: str) -> Facts:
    """Return what the server is, and how much the store has on it. Raises LogNotFound."""
    with opened_store(url) as store:
        about = _segue_facts(store) if is_segue_server(url) else _redis_facts(store)
        return Facts(
            items=(
                (Column("url"), without_passwords(url)),
                *about,
                (Column("queues", Kind.COUNT), len(store.queues())),
                (Column("topics", Kind.COUNT), len(store.topics())),
                (Column("rings", Kind.COUNT), len(store.rings())),
                (Column("locks", Kind.COUNT), len(store.locks())),
            )
        )


def _segue_facts(store: "Store") -> tuple[tuple[Column, Value], ...]:
    about = cast("HttpStore", store).about
    return (
        (Column("server"), about.server),
        (Column("version"), about.version),
        (Column("api", Kind.COUNT), about.api),
        (Column("store"), about.store),
        (Column("durable"), about.durable),
    )


def _redis_facts(opened: "Store") -> tuple[tuple[Column, Value], ...]:
    from segue.stores.redis.keys import format_key

    store = cast("RedisStore", opened)
    said = store.calls.command(format_key(store.namespace), "INFO", "everything")
    text = cast("bytes", said).decode(errors="replace")
    about = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return (
        (Column("kind"), store.address.kind),
        (Column("server"), about.get("server_name", "redis")),
        (Column("version"), next((about[n] for n in _VERSIONS if n in about), None)),
        (Column("nodes", Kind.COUNT), len(store.calls.servers.nodes())),
        (Column("namespace"), store.namespace),
    )


def require_auditable(url: str) -> None:
    """Raise BadParameter for a server whose store is checked where it lies."""
    if is_segue_server(url):
        raise typer.BadParameter(
            f"{without_passwords(url)} is a server; check the store behind it where it lies: "
            "its directory, or its own URL"
        )


def audit(url: str) -> Problems:
    """Return what is wrong with the queues of a store. Changes nothing. Raises LogNotFound."""
    with opened_store(url) as store:
        from segue.stores.redis.audit import audit_store

        return audit_store(cast("RedisStore", store))


def audit_rows(audits: dict[str, Problems]) -> Rows:
    """Return how every queue of several stores is."""
    return Rows(
        name="queues",
        mark="queue",
        columns=_AUDIT_COLUMNS,
        rows=[
            (without_passwords(url), queue, "damaged" if problems else "intact", len(problems))
            for url, found in audits.items()
            for queue, problems in sorted(found.items())
        ],
    )


def audit_findings(audits: dict[str, Problems]) -> Iterator[Finding]:
    """Yield what is wrong, one by one."""
    for url, found in audits.items():
        for queue, problems in sorted(found.items()):
            for problem in problems:
                yield Finding(
                    path=f"{without_passwords(url)} {queue}", problem=problem, remedy="none"
                )
