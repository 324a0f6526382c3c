"""A topic's life, killed at every call that others can see; a sample of them in a short run."""

import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from segue.log.options import SyncName
from tests.crash.channel import Channel, Report
from tests.crash.children import DONE
from tests.crash.kill_runs import ended
from tests.crash.killing_disk import KillingDisk, KillPoint, Moment
from tests.crash.processes import ForkServer
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.topic_evidence import (
    Snapshot,
    Told,
    check_goes_on,
    check_successors,
    snapshot_of,
)
from tests.crash.topic_story import (
    GROUP,
    PARTITIONS,
    READER,
    STORY,
    Life,
    name_of,
    open_store,
    play,
)

POINTS: Final = 250 if TORTURE else 12
"""How many are tried in each sync mode."""
TOKENS: Final = "tokens"


class TopicDisk(KillingDisk):
    """Writes every record by a call, also where it would be stored in a mapping."""

    stores_mapped = False


def play_and_report(
    channel: Channel, root: Path, sync: SyncName, foreign: Path, point: KillPoint | None
) -> None:
    """Play the story; report how many steps are done, and the tokens that were given."""
    with open_store(root, sync, disk=TopicDisk(point)) as store:
        life = Life(store, foreign)

        def tell(done: int) -> None:
            channel.report([TOKENS, *map(str, sorted(life.tokens))])
            channel.report(done)

        play(life, tell)
        life.close()
    channel.report(DONE)


def list_calls(channel: Channel, root: Path, sync: SyncName, foreign: Path) -> None:
    """Play the story to its end; report each call with the step it was made in."""
    disk = TopicDisk()
    told: list[int] = []
    with open_store(root, sync, disk=disk) as store:
        life = Life(store, foreign)
        play(life, lambda _: told.append(len(disk.trace)))
        life.close()
    for place, (first, stop) in enumerate(zip([0, *told[1:-1]], told[1:], strict=True)):
        for operation in disk.trace[first:stop]:
            channel.report([str(place), operation])
    channel.report(DONE)


def points_of(reports: list[Report]) -> list[tuple[KillPoint, int]]:
    """Return every place to be killed at, and in which step it is."""
    numbers: dict[str, int] = {}
    points = []
    for report in reports[:-1]:
        assert isinstance(report, list)
        step, operation = int(report[0]), str(report[1])
        numbers[operation] = numbers.get(operation, 0) + 1
        points += [
            (KillPoint(operation=operation, number=numbers[operation], moment=moment), step)
            for moment in Moment
            if moment is not Moment.WITHIN or operation == "write_at"
        ]
    return points


def test_where_nothing_happens_the_story_does_what_it_says(scratch: Path) -> None:
    """What is found after a kill, a power cut or a fault is held to this."""
    told = Told(scratch, "os")
    for place, act in enumerate(STORY):
        before, after = told.snapshots[place : place + 2]
        gone = gone_between(before, after)
        match act.__name__:
            case "grow":
                new = {name: at for name, at in after.places.items() if name not in before.places}
                assert new == {(READER, PARTITIONS): 0, (GROUP, PARTITIONS): 0}
            case "compact":
                assert gone
                check_compacted(after)
                check_successors(after, told.everything())
            case "clean":
                assert gone
                for (_, partition), at in after.places.items():
                    assert after.first[partition] <= at
            case _:
                assert not gone, name_of(place)


def gone_between(before: Snapshot, after: Snapshot) -> set[tuple[int, int]]:
    """Return the places of the records that are there no more."""
    return {
        (partition, offset)
        for partition, records in before.records.items()
        for offset in records.keys() - after.records[partition].keys()
    }


def check_compacted(snapshot: Snapshot) -> None:
    """Assert that before the last segment nothing is left that a later record replaced."""
    for partition, records in snapshot.records.items():
        newest = {content.key: offset for offset, content in sorted(records.items())}
        for offset, content in records.items():
            if content.key is not None and offset < snapshot.segments[partition][-1]:
                assert newest[content.key] == offset, f"{partition}: {offset} was replaced"


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_kill_at_any_call_leaves_a_state_the_topic_s_life_allows(
    scratch: Path, forks: ForkServer, sync: SyncName
) -> None:
    """What returned has happened; the call under way has, or has not, batch by batch.

    Compaction leaves each segment old or new, an adoption is there as a whole or not at all, and
    whoever comes afterwards goes on: with new tokens, and nothing twice.
    """
    told = Told(scratch, sync)
    _, reports = ended(forks.start(list_calls, scratch / "calls", sync, told.foreign))
    points = points_of(reports)
    seed = new_seed()
    chance = random.Random(f"{seed} {sync}")
    kills = 0
    for point, step in chance.sample(points, min(POINTS, len(points))):
        root = scratch / "store"
        with naming_seed(seed), naming(point), naming(f"in {name_of(step)}"):
            killed, reports = ended(forks.start(play_and_report, root, sync, told.foreign, point))
            kills += killed
            check_found(root, sync, told, reports)
        shutil.rmtree(root)

    assert kills > POINTS // 2 or kills == len(points)


def check_found(root: Path, sync: SyncName, told: Told, reports: list[Report]) -> None:
    """Hold what a process left to what it reported, and go on with it."""
    done = max((report for report in reports if isinstance(report, int)), default=0)
    tokens = [
        int(token)
        for report in reports
        if isinstance(report, list) and report[0] == TOKENS
        for token in report[1:]
    ]
    with open_store(root, sync) as store:
        found = snapshot_of(store, root)
        told.check(found, done, under_way=done < len(STORY))
    with open_store(root, sync) as store:
        assert snapshot_of(store, root) == found, "opening twice gives different answers"
        check_goes_on(store, told.foreign, found, tokens)
    check_logs(root)
