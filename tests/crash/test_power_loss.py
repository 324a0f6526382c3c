"""What a log promises when the power fails, tried on the states the disk may be found in.

A script runs on a `RecordingDisk`. Then the power is cut, on paper, at moments of that run; each
time one state that POSIX allows is built and opened, and held to what had been asked of the log by
then. The opened log is recorded as well, goes on, and loses power again, also in the middle of its
recovery. Every script is a seed: it stands in the test's id, and a failure's notes name each cut.
"""

import shutil
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest

from segue import Log
from segue.errors import CorruptSegment, SegueError, StorageFailed
from segue.log.log import _open_logs
from segue.log.options import SyncName
from segue.testing import Event, FaultyDisk, Operation, RecordingDisk
from tests.crash.power_story import Attempt, Story, Writer, examine
from tests.crash.replay import TORTURE, naming, new_seed
from tests.waiting import LIMIT_SECONDS

SEEDS: Final = range(70 if TORTURE else 2)
STEPS: Final = 25
STEPS_AFTER: Final = 6
CUTS: Final = 8
"""How often the power fails in one recorded run, each time with cuts in what follows."""
DEPTH_MAX: Final = 3
STATES: Final = 10 if TORTURE else 1
"""How many states are tried where every moment is; five times as many where few are."""
MOMENT_STEP: Final = 1 if TORTURE else 2
"""A short run cuts at every second moment, from a random one of the first two on."""
THREADS: Final = 4

each_sync = pytest.mark.parametrize("sync", ["always", "interval", "os"])
each_seed = pytest.mark.parametrize("seed", SEEDS)

SCRIPT: Final = """
append, append, commit ann, append_many, roll, append, append_many, flush, commit bob, roll,
append, roll, append_many, commit ann, commit bob, append, cleanup, append, append_many, reopen,
append, roll, append, roll, append, commit ann, commit bob, trim, append, flush, append_many
""".replace("\n", " ").split(", ")
"""Everything a log does, with several segments to delete at once."""

SHORT_SCRIPT: Final = (
    *("append", "commit ann", "roll", "append_many", "commit ann", "cleanup", "append"),
    *("reopen", "append", "roll", "append", "commit bob", "trim", "append"),
)
MUTATIONS: Final[tuple[Operation, ...]] = (
    *("open_to_write", "write_at", "resize", "sync_data"),
    *("make_directory", "rename", "unlink", "sync_directory"),
)


def start(root: Path, sync: SyncName, random: Random) -> tuple[RecordingDisk, Story, Writer]:
    """Open a new log on a disk that is recorded."""
    root.mkdir()
    disk = RecordingDisk(root)
    story = Story(sync)
    return disk, story, Writer(root, disk, story, random)


def cut(
    root: Path, disk: RecordingDisk, story: Story, *, moment: int, seed: int, depth: int = 1
) -> None:
    """Cut the power at `moment`, open what is left, go on with it, and cut that again."""
    events = disk.events
    last = events[moment - 1] if moment else "start"
    try:
        with naming(f"power cut {depth} at {moment} of {len(events)} after {last}, seed {seed}"):
            random = Random(seed)
            after = disk.after_power_cut(root, moment, random)
            later = Story(story.sync, story.expected(moment))
            try:
                writer = Writer(root, after, later, random)
            except CorruptSegment:
                if story.sync == "os" and later.before.promises_nothing:
                    return  # Nothing is left that could tell at which offset to go on.
                raise
            recovered, found = later.openings[-1]
            writer.reopen()
            again = examine(writer.log, later.expected(after.moment), story.sync)
            assert again == found, "opening twice gives different answers"
            writer.play_random(STEPS_AFTER)
            examine(writer.log, later.expected(after.moment), story.sync)
            writer.close()
            if depth < DEPTH_MAX:
                moments = random.randint(0, recovered), random.randint(0, after.moment)
                for place, each in enumerate(moments):
                    nested = root.with_name(f"{root.name}.{place}")
                    seed = random.getrandbits(32)
                    cut(nested, after, later, moment=each, seed=seed, depth=depth + 1)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def moments_of(events: Sequence[Event], random: Random, number: int) -> list[int]:
    """Draw moments to cut at: half of them anywhere, half where names change."""
    calm = ("write", "sync_data")
    names = [place for place, event in enumerate(events) if event.operation not in calm]
    anywhere = [random.randint(0, len(events)) for _ in range(number // 2)]
    at_names = [random.choice(names) + random.randint(0, 2) for _ in range(number - number // 2)]
    return [min(moment, len(events)) for moment in anywhere + at_names]


@each_seed
@each_sync
def test_a_power_cut_at_any_moment_keeps_what_was_promised_and_invents_nothing(
    scratch: Path, sync: SyncName, seed: int
) -> None:
    """C1, C2, C7: what was promised is there, batches are whole, recovery may be cut as well."""
    random = Random(seed)
    disk, story, writer = start(scratch / "0", sync, random)
    writer.play_random(STEPS)
    writer.close()

    for moment in moments_of(disk.events, random, CUTS):
        cut(scratch / "1", disk, story, moment=moment, seed=random.getrandbits(32))


@each_sync
def test_no_single_moment_of_a_log_s_life_is_a_bad_one_to_lose_power(
    scratch: Path, sync: SyncName
) -> None:
    """Creation, rolls, seals, commits and deletions are cut after every single change."""
    random = Random(0)
    disk, story, writer = start(scratch / "0", sync, random)
    writer.play(SCRIPT)
    writer.close()

    first = Random(new_seed()).randrange(MOMENT_STEP)
    for moment in range(first, disk.moment + 1, MOMENT_STEP):
        for _ in range(STATES):
            cut(
                scratch / "1",
                disk,
                story,
                moment=moment,
                seed=random.getrandbits(32),
                depth=DEPTH_MAX,
            )


def cut_often(scratch: Path, sync: SyncName, steps: str, moments: int = 1) -> None:
    """Play `steps` and cut the power at each of the last `moments`, many times."""
    disk, story, writer = start(scratch / "0", sync, Random(0))
    writer.play(steps.split(", "))
    end = disk.moment
    for moment in range(end + 1 - moments, end + 1):
        for seed in range(5 * STATES + 5):
            cut(scratch / "1", disk, story, moment=moment, seed=seed, depth=DEPTH_MAX)
    writer.close()


def test_a_seal_torn_by_the_power_is_no_damage(scratch: Path) -> None:
    """Both copies of it are written at once, so one may be there without the other."""
    cut_often(scratch, "always", "append, append, roll", moments=8)


def test_segments_deleted_together_leave_no_hole(scratch: Path) -> None:
    """Names may go in any order; what is left must still be one log."""
    segments = "append, roll, append, roll, append, roll, append"
    cut_often(scratch, "always", f"{segments}, commit ann, cleanup", moments=8)


def test_cleanup_never_outruns_a_commit_that_the_power_can_take_back(scratch: Path) -> None:
    """A reader thrown back to an older place still finds it in the log."""
    cut_often(scratch, "always", "append, commit ann, roll, append, commit ann, cleanup, append")


def test_a_flush_covers_every_segment_and_its_name_in_mode_os(scratch: Path) -> None:
    """A roll syncs nothing there, so the flush after it has more to do than the active segment."""
    cut_often(scratch, "os", "append, roll, append_many, roll, append, flush")


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_reader_ahead_of_what_is_left_is_given_whatever_comes_next(
    scratch: Path, sync: SyncName
) -> None:
    """Its place was safe and the records were not: offsets used again are new to it."""
    cut_often(
        scratch, sync, "append, commit ann, flush, append, append_many, commit ann", moments=4
    )


class FaultyRecordingDisk(FaultyDisk, RecordingDisk):
    """A disk that is recorded, and whose process can also fail or die while the power stays."""

    def __init__(self, root: Path) -> None:
        FaultyDisk.__init__(self)
        RecordingDisk.__init__(self, root)

    def kill_process(self) -> None:
        """Close every file, as the end of a process does. Its logs must not be used any more."""
        self.heal()
        # A log that counts as open closes its descriptors in each forked child of this process,
        # where their numbers may belong to other files by then.
        for log in [log for log in _open_logs if log._disk is self]:
            _open_logs.discard(log)
        for fd in list(self._open):
            RecordingDisk.unlock(self, fd)  # A mapping may keep the file open a little longer.
            RecordingDisk.close(self, fd)


@pytest.mark.parametrize("operation", MUTATIONS)
@pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "dies"])
def test_what_is_acknowledged_after_a_failed_call_survives_the_power(
    scratch: Path, operation: Operation, *, dies: bool
) -> None:
    """Half-done work is found by the next call or process, which must sync it as its own."""
    for call in count(1):
        with naming(f"call {call} of {operation} fails"):
            root = scratch / f"run {call}"
            root.mkdir()
            disk = FaultyRecordingDisk(root)
            disk.fail(call=call, operation=operation)
            story, failure = play_through_a_failure(root, disk, Random(call), dies=dies)
            disk.kill_process()  # Or its files stay open to the end of the run.
            if not disk.failed:
                break
            for seed in range(STATES):
                moment = Random(seed).randint(failure, min(failure + 24, disk.moment))
                cut(scratch / "1", disk, story, moment=moment, seed=seed, depth=DEPTH_MAX)


def play_through_a_failure(
    root: Path, disk: FaultyRecordingDisk, random: Random, *, dies: bool
) -> tuple[Story, int]:
    """Play a script; whatever fails is tried again, by the same process or by another one.

    Return the story and the moment of the failure.
    """
    story = Story("always")
    failure = 0
    writer: Writer | None = None
    steps = iter(["append", *SHORT_SCRIPT])
    step = next(steps)
    for _ in range(2 * len(SHORT_SCRIPT)):
        try:
            if writer is None:
                writer = Writer(root, disk, story, random)
            writer.play([step])
            step = next(steps)
        except (SegueError, OSError) as error:  # Which of them, test_faults.py looks at.
            failure = disk.moment
            if dies or step == "reopen" or isinstance(error, StorageFailed):
                disk.kill_process()
                writer = None
        except StopIteration:
            break
    return story, failure


def test_a_record_acknowledged_in_mode_always_survives_whatever_mode_came_before(
    scratch: Path,
) -> None:
    """Files and names that mode "os" left unsynced are synced before anything is built on them."""
    for seed in range(STATES * 10):
        disk, story, writer = start(scratch / "0", "os", Random(seed))
        writer.play(["append", "append", "roll", "append_many", "roll", "append", "close"])
        story.sync = "always"
        writer.open()
        writer.play(["append", "append_many"])

        cut(scratch / "1", disk, story, moment=disk.moment, seed=seed, depth=DEPTH_MAX)
        writer.close()
        shutil.rmtree(scratch / "0")


@each_seed
def test_threads_that_append_at_once_lose_nothing_that_returned(scratch: Path, seed: int) -> None:
    """Whoever's sync it was, a record is there once its own append has returned."""
    (scratch / "0").mkdir()
    disk = RecordingDisk(scratch / "0")
    story = Story("always")
    writer = Writer(scratch / "0", disk, story, Random(seed))

    def append(number: int) -> None:
        for place in range(12):
            content = (b"%d %d " % (number, place)) * (place * 7), number << 16 | place
            started = disk.moment
            first = writer.log.append(content[0], attr=content[1])
            story.attempts.append(
                Attempt(first=first, contents=[content], started=started, returned=disk.moment)
            )

    threads = [threading.Thread(target=append, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    random = Random(seed)
    for moment in moments_of(disk.events, random, CUTS):
        cut(scratch / "1", disk, story, moment=moment, seed=random.getrandbits(32), depth=DEPTH_MAX)

    examine(writer.log, story.expected(disk.moment), "always")
    writer.close()


class WaitingDisk(RecordingDisk):
    """Says when a file has been synced."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.synced = threading.Event()

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.synced.set()


def test_what_the_background_has_synced_is_there_in_mode_interval(scratch: Path) -> None:
    """The interval needs no flush and no close."""
    disk = WaitingDisk(scratch / "0")
    with Log(scratch / "0" / "log", disk=disk, sync="interval", sync_interval_ms=1) as log:
        for number in range(20):
            disk.synced.clear()
            log.append(b"%d" % number)
            assert disk.synced.wait(LIMIT_SECONDS)
        moment = disk.moment
    after = disk.after_power_cut(scratch / "1", moment, Random(0))

    with Log(scratch / "1" / "log", disk=after) as log:
        assert [record.payload for record in log.records()] == [b"%d" % n for n in range(20)]
