"""What `generate_aio.py` cannot tell from the signatures of the contract."""

from dataclasses import dataclass
from typing import Final

CONTRACT: Final = "segue.stores.contract"
JOB: Final = "segue.stores.job"
OPENING: Final = "segue.stores.opening"
TOPIC_CONTRACT: Final = "segue.stores.topic_contract"
THREADS: Final = "segue.aio._threads"
HANDLES: Final = "segue.aio._handles"
ITEMS: Final = "segue.aio._items"
CONSUMER: Final = "segue.aio._consumer"
TOPICS: Final = "segue.aio._topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A class to write."""

    name: str
    it: str
    """What a lambda calls one of them."""
    module: str
    base: str
    """What it stands on, in `HANDLES` or `TOPICS`."""
    skip: frozenset[str] = frozenset({"__enter__", "__exit__"})
    """Methods that are written by hand in the base, or not for users."""
    plain: frozenset[str] = frozenset()
    """Methods that ask nobody, and so are no coroutines."""
    asking: frozenset[str] = frozenset()
    """Properties that do ask, and so are to be awaited."""
    regained: frozenset[str] = frozenset()
    """Methods that return what was granted before, so that there is nothing to give back."""
    attributes: tuple[tuple[str, str, str], ...] = ()
    """Attributes to pass on, where the source does not declare them: name, type, docstring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A file to write."""

    filename: str
    title: str
    sources: tuple[str, ...]
    """Where its nouns and the names in their signatures come from."""
    nouns: tuple[Noun, ...]
    opens: bool = False
    """Whether `open` is in it, too."""


NOUNS: Final = (
    Noun(
        name="Job",
        it="job",
        module=JOB,
        base="JobHandle",
        skip=frozenset({"__enter__", "__exit__", "settle", "know"}),
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
    Noun(
        name="Lock",
        it="lock",
        module=CONTRACT,
        base="LockHandle",
        regained=frozenset({"held"}),
    ),
    Noun(
        name="Store",
        it="store",
        module=CONTRACT,
        base="OpenHandle[contract.Store]",
        skip=frozenset(),
    ),
)

TOPIC_NOUNS: Final = (
    Noun(
        name="Producer",
        it="producer",
        module=TOPIC_CONTRACT,
        base="TurnHandle[topic_contract.Producer]",
        skip=frozenset(),
    ),
    Noun(
        name="TopicReader",
        it="reader",
        module=TOPIC_CONTRACT,
        base="ReaderHandle",
        skip=frozenset({"__iter__"}),
        asking=frozenset({"position"}),
    ),
    Noun(
        name="Member",
        it="member",
        module=TOPIC_CONTRACT,
        base="MemberHandle",
        skip=frozenset(),
        asking=frozenset({"assignment", "position"}),
    ),
    Noun(name="Group", it="group", module=TOPIC_CONTRACT, base="GroupHandle"),
    Noun(
        name="Topic",
        it="topic",
        module=TOPIC_CONTRACT,
        base="TopicHandle",
        asking=frozenset({"partitions", "rules"}),
    ),
)

TWINS: Final = (
    Twin(
        filename="_generated.py",
        title="The nouns of the contract",
        sources=(CONTRACT, JOB, OPENING),
        nouns=NOUNS,
        opens=True,
    ),
    Twin(
        filename="_generated_topics.py",
        title="The nouns of topics",
        sources=(TOPIC_CONTRACT,),
        nouns=TOPIC_NOUNS,
    ),
)

NAMED: Final = {"Queue": "", "Ring": "", "Lock": ", ttl=ttl", "Topic": "", "Group": ""}
"""What is opened by name, and what else it must know."""

UNDO: Final = {
    "Job": "lambda job: job.release()",
    "list[Job]": "release_all",
    "HeldLock": "lambda held: held.release()",
    "Transaction": "lambda transaction: transaction.abort()",
    "Producer": "lambda producer: producer.close()",
    "TopicReader": "lambda reader: reader.close()",
    "Member": "lambda member: member.close()",
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
    "OnRebalance | None": "lending({})",
}
"""What becomes of arguments of a type on their way in."""

FETCHED_ALONE: Final = frozenset({"pa.Table"})
"""Items so large that an iterator fetches them one by one."""

TYPES: Final = {CONTRACT: {"Event": "Stop"}}
"""Types that are others here, by the source that means them."""

TYPES_ONLY: Final = {"pa": "import pyarrow as pa"}
"""What is imported where types are checked, and not where the code runs."""

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
    ("With `partitions` or `rules` it exists at once.",
     "Opened by its first call, or by `await`ing it; with `partitions` or `rules` it exists then."),
    ("Safe from any thread and process.", "Safe from any task and process."),
    ("the second also from here.",
     "the second also from here, in a thread: `asyncio.run_coroutine_threadsafe` commits there."),
    ("when none comes within `timeout`.",
     "when none comes within `timeout`.\n\nBegins once one is asked for, or by `await`ing it."),
    ("Open the store at `url`:", "Open the store at `url`, with threads of its own:"),
)  # fmt: skip
"""What docstrings say otherwise here."""

IMPORTS: Final = {
    "Consumer": CONSUMER,
    "Stop": CONSUMER,
    "Threads": THREADS,
    "Items": ITEMS,
    "Topic": "segue.aio._generated_topics",
    "JobHandle": HANDLES,
    "LockHandle": HANDLES,
    "NamedHandle": HANDLES,
    "OpenHandle": HANDLES,
    "QueueHandle": HANDLES,
    "bare": HANDLES,
    "gathered": HANDLES,
    "release_all": HANDLES,
    "GroupHandle": TOPICS,
    "MemberHandle": TOPICS,
    "ReaderHandle": TOPICS,
    "TopicHandle": TOPICS,
    "TurnHandle": TOPICS,
    "lending": TOPICS,
}
"""Names that the sources do not import."""
