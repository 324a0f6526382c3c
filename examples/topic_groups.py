"""Members of a group share a topic: one is killed, one leaves, one falls asleep. Nothing is lost.

Each partition has one member at a time. When it changes hands, its fencing token grows: who was
asleep meanwhile can commit nothing any more, and what the records change can refuse its old token.

    python examples/topic_groups.py

It prints who has which partitions after each change, and fails unless every order is billed, and
what the sleeper did is refused.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.synchronize import Event

import segue
from segue.errors import PartitionLost

ORDERS = [segue.Event(value=f"order {n}", key=f"customer {n % 97}") for n in range(600)]


class Books:
    """What was billed. As a database would, it refuses a token older than it has seen."""

    def __init__(self) -> None:
        self.billed: set[tuple[int, int]] = set()
        self._tokens: dict[int, int] = {}

    def bill(self, record: segue.TopicRecord, token: int) -> bool:
        """Bill an order, and tell whether that was accepted. Twice is as good as once."""
        if token < self._tokens.get(record.partition, 0):
            return False
        self._tokens[record.partition] = token
        self.billed.add((record.partition, record.offset))
        return True


def read_alone(path: str, has_read: Event) -> None:
    """Read as a member that never commits, until killed. A process of its own."""
    with segue.open(path) as store, store.topic("orders").group("billing").join(owner="cyd") as cyd:
        while True:
            cyd.poll(10, timeout=0.05)
            has_read.set()


def shares(group: segue.Group) -> dict[str, list[int]]:
    """Return the partitions of each member."""
    return {member.owner: sorted(member.partitions) for member in group.info().members}


def sizes(group: segue.Group) -> list[int]:
    """Return how many partitions each member has."""
    return [len(partitions) for partitions in shares(group).values()]


def behind(group: segue.Group) -> int:
    """Return how many orders nobody has committed."""
    return sum(lag.records for lag in group.lag())


def work(members: list[segue.Member], books: Books, is_so: Callable[[], bool]) -> None:
    """Have members read, bill and commit in turn, until something is so."""
    while not is_so():
        for member in members:
            for record in member.poll(20, timeout=0.05):
                books.bill(record, member.assignment[record.partition])
            member.commit()


def share(group: segue.Group, books: Books, path: str) -> segue.Member:
    """Have three share the partitions until one is left, and return that one."""
    processes = multiprocessing.get_context("spawn")
    has_read = processes.Event()
    cyd = processes.Process(target=read_alone, args=(path, has_read), daemon=True)
    cyd.start()
    has_read.wait(60)
    ann, ben = group.join(owner="ann"), group.join(owner="ben")
    work([ann, ben], books, lambda: sizes(group) == [2, 2, 2])
    print("three share:    ", shares(group))
    cyd.kill()
    cyd.join()
    work([ann, ben], books, lambda: sizes(group) == [3, 3])
    print("cyd was killed: ", shares(group))
    ben.close()
    work([ann], books, lambda: sizes(group) == [6] and not behind(group))
    print("ben has left:   ", shares(group))
    return ann


def fence(topic: segue.Topic, books: Books, ann: segue.Member) -> None:
    """Have a member fall asleep with an order in its hands, and wake up too late."""
    group = topic.group("billing")
    with group.join(owner="dan", ttl=1) as dan:
        while len(dan.assignment) < 3:
            ann.poll()  # gives up what dan should have
            dan.poll()  # takes it
        topic.append_many(ORDERS[300:])
        while not (records := dan.poll(1, timeout=0.1)):
            pass
        record = records[0]
        old = dan.assignment[record.partition]
        print("dan has joined: ", shares(group))
        work([ann], books, lambda: len(ann.assignment) == 6)  # for longer than the ttl of dan
        new = ann.assignment[record.partition]
        print("dan is silent:  ", shares(group))
        if new <= old or books.bill(record, old):
            raise SystemExit("a stale token was accepted")
        try:
            dan.commit()
        except PartitionLost as lost:
            print(f"dan wakes up:    {lost}; token {old} is refused, ann has {new}")
        else:
            raise SystemExit("a stale commit was accepted")


def main(path: str) -> None:
    """Bill all orders, whatever becomes of the members."""
    books = Books()
    with segue.open(path, sync="interval") as store:
        topic = store.topic("orders", partitions=6)
        topic.append_many(ORDERS[:300])
        group = topic.group("billing")
        with share(group, books, path) as ann:
            fence(topic, books, ann)
            work([ann], books, lambda: not behind(group))
        there = {(record.partition, record.offset) for record in topic.records()}
        print(f"{len(books.billed)} of {len(ORDERS)} orders are billed")
        if books.billed != there or len(there) != len(ORDERS):
            raise SystemExit("orders were lost")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory:
        main(directory)
