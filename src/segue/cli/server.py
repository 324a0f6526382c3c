"""What can be said of a store on a server as a whole: shared by `info` and `verify`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from segue.cli.findings import Finding
from segue.cli.output import Column, Facts, Kind, Rows
from segue.cli.places import without_passwords
from segue.cli.store_arguments import opened_store

if TYPE_CHECKING:
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
    with _opened(url) as store:
        from segue.stores.redis.keys import format_key

        said = store.calls.command(format_key(store.namespace), "INFO", "everything")
        text = cast("bytes", said).decode(errors="replace")
        about = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return Facts(
            items=(
                (Column("url"), without_passwords(url)),
                (Column("kind"), store.address.kind),
                (Column("server"), about.get("server_name", "redis")),
                (Column("version"), next((about[n] for n in _VERSIONS if n in about), None)),
                (Column("nodes", Kind.COUNT), len(store.calls.servers.nodes())),
                (Column("namespace"), store.namespace),
                (Column("queues", Kind.COUNT), len(store.queues())),
                (Column("topics", Kind.COUNT), len(store.topics())),
                (Column("rings", Kind.COUNT), len(store.rings())),
                (Column("locks", Kind.COUNT), len(store.locks())),
            )
        )


def audit(url: str) -> Problems:
    """Return what is wrong with the queues of a store. Changes nothing. Raises LogNotFound."""
    with _opened(url) as store:
        from segue.stores.redis.audit import audit_store

        return audit_store(store)


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


@contextmanager
def _opened(url: str) -> Iterator["RedisStore"]:
    with opened_store(url) as store:
        from segue.stores.redis.store import RedisStore

        assert isinstance(store, RedisStore)
        yield store
