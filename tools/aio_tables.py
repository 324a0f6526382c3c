"""What `generate_aio.py` cannot tell from the signatures of the contract."""

from dataclasses import dataclass
from typing import Final

CONTRACT: Final = "segue.stores.contract"
JOB: Final = "segue.stores.job"
OPENING: Final = "segue.stores.opening"
THREADS: Final = "segue.aio._threads"
HANDLES: Final = "segue.aio._handles"
CONSUMER: Final = "segue.aio._consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A class to write."""

    name: str
    it: str
    """What a lambda calls one of them."""
    module: str
    base: str
    """What it stands on, in `HANDLES`."""
    skip: frozenset[str] = frozenset({"__enter__", "__exit__"})
    """Methods that are written by hand in the base, or not for users."""
    plain: frozenset[str] = frozenset()
    """Methods that ask nobody, and so are no coroutines."""
    asking: frozenset[str] = frozenset()
    """Properties that do ask, and so are to be awaited."""
    attributes: tuple[tuple[str, str, str], ...] = ()
    """Attributes to pass on, where the source does not declare them: name, type, docstring."""


NOUNS: Final = (
    Noun(
        name="Job",
        it="job",
        module=JOB,
        base="JobHandle",
        skip=frozenset({"__enter__", "__exit__", "settle"}),
        plain=frozenset({"json", "check", "keep_alive", "let_go", "drop"}),
        attributes=(
            ("priority", "int", "The message's priority."),
            ("token", "int", "The lease's token."),
            ("ttl_seconds", "float", "How long the lease lasts when it is renewed."),
            ("is_settled", "bool", "Whether the job is over."),
        ),
    ),
    Noun(
        name="Queue", it="queue", module=CONTRACT, base="QueueHandle", asking=frozenset({"rules"})
    ),
    Noun(
        name="Transaction",
        it="transaction",
        module=CONTRACT,
        base="OpenHandle[contract.Transaction]",
        skip=frozenset(),
    ),
    Noun(name="Ring", it="ring", module=CONTRACT, base="NamedHandle[contract.Ring]"),
    Noun(name="HeldLock", it="held", module=CONTRACT, base="OpenHandle[contract.HeldLock]"),
    Noun(name="Lock", it="lock", module=CONTRACT, base="LockHandle"),
    Noun(
        name="Store",
        it="store",
        module=CONTRACT,
        base="OpenHandle[contract.Store]",
        skip=frozenset(),
    ),
)

NAMED: Final = {"Queue": "", "Ring": "", "Lock": ", ttl=ttl"}
"""What is opened by name, and what else it must know."""

UNDO: Final = {
    "Job": "lambda job: job.release()",
    "list[Job]": "release_all",
    "HeldLock": "lambda held: held.release()",
    "Transaction": "lambda transaction: transaction.abort()",
}
"""How to give back what a call grants."""

TAKEN: Final = frozenset({"Message | None", "list[Message]", "Entry | None"})
"""What a call that may wait takes for good."""

LINES: Final = {
    "push": "room",
    "push_many": "room",
    "pop": "pop",
    "pop_many": "pop",
    "lease": "lease",
    "lease_many": "lease",
}
"""What the callers of a method wait for; all others wait for their turn."""

ARGUMENTS: Final = {
    "Job | Receipt": "bare({})",
    "Iterable[Job | Receipt]": "[bare(job) for job in {}]",
}
"""What becomes of arguments of a type on their way in."""

TYPES: Final = {"Event": "Stop"}

PHRASES: Final = (
    ("`with queue.lease() as job:`", "`async with await queue.lease() as job:`"),
    ("`with store.lock(", "`async with store.lock("),
    ("`with job:` keeps", "`async with job:` keeps"),
    ("acks at the end, and nacks if an exception ends it. Once",
     "acks at the end, nacks if an exception ends it, and releases if the task is cancelled. Once"),
    ("For one thread at a time", "For one task at a time"),
    ("Safe from any thread; any", "Safe from any task; any"),
    ("Safe from any thread.", "Safe from any task."),
    ("without them it keeps those it has.",
     "without them it keeps those it has. Opened by its first call, or by `await`ing it."),
    ("its own, and refuses another.",
     "its own, and refuses another. Opened by its first call, or by `await`ing it."),
    ("Open the store at `url`:", "Open the store at `url`, with threads of its own:"),
)  # fmt: skip
"""What docstrings say otherwise here."""

IMPORTS: Final = {
    "AsyncIterator": "collections.abc",
    "Consumer": CONSUMER,
    "Stop": CONSUMER,
    "Threads": THREADS,
    "JobHandle": HANDLES,
    "LockHandle": HANDLES,
    "NamedHandle": HANDLES,
    "OpenHandle": HANDLES,
    "QueueHandle": HANDLES,
    "bare": HANDLES,
    "gathered": HANDLES,
    "release_all": HANDLES,
}
"""Names that the sources do not import."""
