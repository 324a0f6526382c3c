"""Which server has which key: one, one that sentinels name, or the nodes of a cluster."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.retry import Retry

from segue.errors import StoreClosed, StoreUnavailable
from segue.stores.connections import Pool
from segue.stores.forking import in_every_child
from segue.stores.redis.address import Address, Endpoint

logger = logging.getLogger(__name__)

SLOTS: Final = 16_384
LOOK_SECONDS: Final = 2.0
"""How long a sentinel or node may take to say who is where."""

NETWORK_ERRORS: Final = (redis.ConnectionError, redis.TimeoutError, OSError)


class Connection(Protocol):
    """What is used of a connection of redis-py."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def pack_command(self, *words: object) -> list[bytes]: ...

    def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...

    def read_response(self, *, timeout: float = ...) -> object: ...


class Node:
    """One server, and the connections to it."""

    def __init__(self, address: Address, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        options = address.options

        def connect() -> Connection:
            return connection_to(address, endpoint, timeout=options.timeout)

        self.pool = Pool(connect, size=options.connections, wait_seconds=options.pool_wait)
        # Apart, so that however many wait for messages, who has something to do finds one.
        self.waits = Pool(connect, size=options.connections, wait_seconds=0)

    def close(self) -> None:
        """Let go of every connection."""
        self.pool.close()
        self.waits.close()


def connection_to(
    address: Address, endpoint: Endpoint, *, timeout: float, sentinel: bool = False
) -> Connection:
    """Return a connection that is not connected yet."""
    settings: dict[str, object] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        # Whoever calls tries again, and knows for how long.
        "retry": Retry(NoBackoff(), 0),
    }
    if sentinel:
        settings["username"] = address.options.sentinel_username or None
        settings["password"] = address.options.sentinel_password or None
    else:
        settings["db"] = address.database
        settings["username"] = address.username
        settings["password"] = address.password
    if address.kind == "unix":
        return _unix(path=address.path, **settings)
    settings["host"], settings["port"] = endpoint
    if not address.is_encrypted:
        return _plain(**settings)
    options = address.options
    return _encrypted(
        ssl_ca_certs=options.ca or None,
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or None,
        **settings,
    )


# Without types in redis-py.
_plain = cast("Callable[..., Connection]", redis.Connection)
_unix = cast("Callable[..., Connection]", UnixDomainSocketConnection)
_encrypted = cast("Callable[..., Connection]", SSLConnection)


class Servers(Protocol):
    """Finds the server of a key. Safe from any thread."""

    def node_of(self, key: str) -> Node:
        """Return the server that has `key`, as far as is known.

        Raises StoreUnavailable, and StoreClosed after `close`.
        """

    def nodes(self) -> list[Node]:
        """Return every server that has keys."""

    def moved(self, key: str, error: Exception) -> None:
        """Look anew who has `key`, after an error that says that it is somebody else."""

    def close(self) -> None:
        """Let go of every connection."""


class One:
    """A server whose place never changes."""

    def __init__(self, address: Address) -> None:
        self._closed = False
        self._node = Node(address, address.endpoints[0] if address.endpoints else ("", 0))

    def node_of(self, key: str) -> Node:
        """Return the server."""
        _require_open(self._closed)
        return self._node

    def nodes(self) -> list[Node]:
        """Return the server."""
        return [self._node]

    def moved(self, key: str, error: Exception) -> None:
        """Connect anew: what was idle leads to where it does not answer."""
        self._node.pool.forget_idle()

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        self._node.close()


class Guarded:
    """The server that sentinels say is the master."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._node: Node | None = None
        self._closed = False
        self.begin()
        in_every_child(self)

    def begin(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def node_of(self, key: str) -> Node:
        """Return the master. Raises StoreUnavailable if no sentinel names one."""
        _require_open(self._closed)
        node = self._node
        return node if node is not None else self._look()

    def nodes(self) -> list[Node]:
        """Return the master."""
        return [self.node_of("")]

    def moved(self, key: str, error: Exception) -> None:
        """Ask the sentinels again."""
        self._look()

    def _look(self) -> Node:
        endpoint = self._master()
        with self._lock:
            node = self._node
            if node is not None and node.endpoint == endpoint:
                node.pool.forget_idle()
                return node
            if node is not None:
                logger.warning(
                    "another master service=%s now=%s:%d", self._address.service, *endpoint
                )
                node.close()
            node = self._node = Node(self._address, endpoint)
            return node

    def _master(self) -> Endpoint:
        service = self._address.service
        problems = []
        for endpoint in self._address.endpoints:
            connection = connection_to(self._address, endpoint, timeout=LOOK_SECONDS, sentinel=True)
            try:
                found = ask(connection, "SENTINEL", "get-master-addr-by-name", service)
            except (*NETWORK_ERRORS, redis.ResponseError) as error:
                problems.append(f"{endpoint[0]}:{endpoint[1]}: {error}")
                continue
            finally:
                connection.disconnect()
            if isinstance(found, list):
                host, port = found
                return host.decode(), int(port)
            problems.append(f"{endpoint[0]}:{endpoint[1]} knows no {service}")
        raise StoreUnavailable("no sentinel names a master: " + "; ".join(problems))

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        with self._lock:
            node = self._node
        if node is not None:
            node.close()


class Cluster:
    """The nodes of a cluster, by the slots they say they have."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._known: dict[Endpoint, Node] = {}
        self._by_slot: list[Endpoint | None] = [None] * SLOTS
        self._closed = False
        self.begin()
        in_every_child(self)

    def begin(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def node_of(self, key: str) -> Node:
        """Return the node that has the slot of `key`. Raises StoreUnavailable."""
        _require_open(self._closed)
        endpoint = self._by_slot[key_slot(key.encode())]
        if endpoint is None:
            self._look()
            endpoint = self._by_slot[key_slot(key.encode())]
            if endpoint is None:
                raise StoreUnavailable(f"no node of the cluster has the slot of {key}")
        return self._node(endpoint)

    def nodes(self) -> list[Node]:
        """Return every node that has slots."""
        if not any(self._by_slot):
            self._look()
        return [self._node(endpoint) for endpoint in sorted({e for e in self._by_slot if e})]

    def moved(self, key: str, error: Exception) -> None:
        """Take a node's word for where a slot is, or ask all of them."""
        if isinstance(error, redis.exceptions.MovedError):
            # A node that does not know its name leaves the host away: it is the same one.
            known = self._by_slot[error.slot_id] or self._address.endpoints[0]
            self._by_slot[error.slot_id] = (error.host or known[0], int(error.port))
            return
        with self._lock:
            endpoint = self._by_slot[key_slot(key.encode())]
            node = None if endpoint is None else self._known.get(endpoint)
        if node is not None:
            node.pool.forget_idle()  # All of them lead to where one does not answer.
        self._look(last=endpoint)

    def _node(self, endpoint: Endpoint) -> Node:
        with self._lock:
            node = self._known.get(endpoint)
            if node is None:
                node = self._known[endpoint] = Node(self._address, endpoint)
            return node

    def _look(self, *, last: Endpoint | None = None) -> None:
        """Ask one node after the other which slots are whose; `last` may know it no more."""
        with self._lock:
            places = [*self._known, *self._address.endpoints]
        problems = []
        for endpoint in sorted(dict.fromkeys(places), key=lambda each: each == last):
            connection = connection_to(self._address, endpoint, timeout=LOOK_SECONDS)
            try:
                ranges = ask(connection, "CLUSTER", "SLOTS")
            except (*NETWORK_ERRORS, redis.ResponseError) as error:
                problems.append(f"{endpoint[0]}:{endpoint[1]}: {error}")
                continue
            finally:
                connection.disconnect()
            if self._learn(cast("list[list[object]]", ranges), endpoint):
                return
            problems.append(f"{endpoint[0]}:{endpoint[1]} knows no slots")
        raise StoreUnavailable("no node of the cluster answers: " + "; ".join(problems))

    def _learn(self, ranges: list[list[object]], asked: Endpoint) -> bool:
        by_slot: list[Endpoint | None] = [None] * SLOTS
        for first, last, master, *_ in ranges:
            host, port = cast("list[object]", master)[:2]
            # A node that does not know its own name leaves it to whoever reached it.
            name = cast("bytes", host).decode() if host else asked[0]
            endpoint = (name, cast("int", port))
            for slot in range(cast("int", first), cast("int", last) + 1):
                by_slot[slot] = endpoint
        if not any(by_slot):
            return False
        with self._lock:
            self._by_slot = by_slot
            gone = [each for each in self._known if each not in set(by_slot)]
            closing = [self._known.pop(each) for each in gone]
        for node in closing:
            node.close()
        return True

    def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        with self._lock:
            nodes = list(self._known.values())
        for node in nodes:
            node.close()


def _require_open(closed: bool) -> None:
    if closed:
        raise StoreClosed("the store is closed")


def ask(connection: Connection, *words: object) -> object:
    """Return the answer to one command."""
    connection.send_packed_command(connection.pack_command(*words))
    return connection.read_response()


KINDS: Final[Mapping[str, type[One] | type[Guarded] | type[Cluster]]] = {
    "single": One,
    "unix": One,
    "sentinel": Guarded,
    "cluster": Cluster,
}


def servers_of(address: Address) -> Servers:
    """Return the servers of a store; nothing is connected yet."""
    return KINDS[address.kind](address)
