"""What keys are called. All keys of one queue, ring, lock or partition carry the same hash tag.

<namespace>:{store}:format          STRING  the version of the layout
<namespace>:{store}:<kind>s         SET     names that were used: queues, rings, locks, topics
<namespace>:{<kind>:<name>}:…               what functions/<kind>.lua says on its top
"""

from typing import Final, Literal

Kind = Literal["queue", "ring", "lock", "topic"]

FORMAT: Final = 1


def format_key(namespace: str) -> str:
    """Return the key that says that there is a store."""
    return f"{namespace}:{{store}}:format"


def names_key(namespace: str, kind: Kind) -> str:
    """Return the key of the names that were used; those of queues until they are removed."""
    return f"{namespace}:{{store}}:{kind}s"


def base_key(namespace: str, kind: Kind, name: str) -> str:
    """Return what all keys of a queue, ring, lock or topic begin with."""
    return f"{namespace}:{{{kind}:{name}}}"


def partition_key(namespace: str, topic: str, partition: int) -> str:
    """Return what all keys of a topic's partition begin with."""
    return f"{namespace}:{{topic:{topic}:{partition}}}"
