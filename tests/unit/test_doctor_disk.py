"""What a file system, a measured sync and what is left on a disk mean: facts to verdicts."""

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from segue.cli.doctor.check import Check, Verdict
from segue.cli.doctor.file_system import (
    IN_MEMORY,
    LOCAL,
    FileSystemFacts,
    file_system_check,
    look_at_file_system,
)
from segue.cli.doctor.mounts import look_up_mount, mount_of
from segue.cli.doctor.probe import SYNCS_MAX, SYNCS_MIN, SYNCS_SECONDS_MAX, Probe
from segue.cli.doctor.space import SpaceFacts, space_checks
from segue.cli.doctor.syncing import Device, SyncFacts, not_measured, sync_check
from segue.log.disk import Disk
from segue.testing import FaultyDisk
from tests.unit.support import failing_cases

OK, INFO, WARN, FAIL = Verdict.OK, Verdict.INFO, Verdict.WARN, Verdict.FAIL
GIB = 1 << 30


def remedied(check: Check) -> bool:
    """Whether what is not in order says what to do."""
    return check.verdict not in (WARN, FAIL) or bool(check.remedy)


# File systems ------------------------------------------------------------------------------

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,nobarrier
30 27 0:27 / /data rw,nosuid shared:5 master:2 - btrfs /dev/vdb rw,subvol=/a
31 27 0:28 / /data\040two ro - nfs4 host:/export rw
32 30 0:29 / /data/inner rw - tmpfs tmpfs rw
33 30 0:30 / /data/inner rw - xfs /dev/vdc rw
a line that is none
34 30 nonsense / /data/inner rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/", "ext4", "/"),
        ("/databases", "ext4", "/"),
        ("/data", "btrfs", "/data"),
        ("/data/x/y", "btrfs", "/data"),
        ("/data two/x", "nfs4", "/data two"),
        ("/data/inner/x", "xfs", "/data/inner"),
    ],
)
def test_a_path_lies_on_the_innermost_mount_that_was_made_last(
    path: str, kind: str, point: str
) -> None:
    """Whatever number its device has: some file systems have several."""
    mount = mount_of(Path(path), TABLE)

    assert mount is not None
    assert (mount.kind, mount.point) == (kind, point)


def test_options_of_the_mount_and_of_the_file_system_count() -> None:
    """Either may be what takes away the promise."""
    root, network = mount_of(Path("/x"), TABLE), mount_of(Path("/data two"), TABLE)

    assert root is not None
    assert network is not None
    assert "nobarrier" in root.options
    assert root.device == (254, 0)
    assert "ro" in network.options


def test_a_table_that_says_nothing_names_no_mount() -> None:
    """Nothing is guessed."""
    assert mount_of(Path("/x"), "") is None


def kind_of(kind: str, **changes: object) -> FileSystemFacts:
    facts = FileSystemFacts(kind=kind, is_refused=False, stores_mapped=True)
    return replace(facts, **changes)  # type: ignore[arg-type]


def test_file_systems() -> None:
    """What is refused, or keeps nothing, fails; what is known and local is in order."""

    def check(facts: FileSystemFacts, verdict: Verdict, word: str) -> None:
        check = file_system_check(facts)

        assert check.verdict is verdict
        assert word in check.found
        assert remedied(check)

    failing = failing_cases(
        check,
        [
            *[(kind_of(kind), OK, kind) for kind in sorted(LOCAL)],
            *[(kind_of(kind), FAIL, "memory") for kind in sorted(IN_MEMORY)],
            (kind_of("nfs4", is_refused=True), FAIL, "refused"),
            (kind_of("btrfs", stores_mapped=False), OK, "copies on write"),
            (kind_of("ext4", options=frozenset({"ro"})), FAIL, "read-only"),
            (kind_of("overlay"), WARN, "container"),
            (kind_of("overlay", options=frozenset({"volatile"})), FAIL, "syncs"),
            (kind_of("overlay", options=frozenset({"fsync=volatile"})), FAIL, "syncs"),
            (kind_of("vfat"), WARN, "pipes"),
            (kind_of("fuse.something"), INFO, "not known"),
            (kind_of(""), WARN, "unknown"),
        ],
    )
    assert failing == []


def test_what_is_refused_is_for_the_log_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor has no list of its own: it would say otherwise one day."""
    monkeypatch.setattr(Disk, "is_network_file_system", lambda *_: True)

    assert look_at_file_system(Path("/"), look_up_mount(Path("/"))).is_refused


# Syncs -------------------------------------------------------------------------------------


def took(*took_us: float, kind: str = "ext4", **changes: object) -> SyncFacts:
    return replace(SyncFacts(took_us=took_us, kind=kind), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "verdict", "word"),
    [
        (took(300, 310, 5000), OK, "only a power cut shows"),
        (took(300, device=Device(is_virtual=True)), OK, "host"),
        (took(300, device=Device(write_cache="write through")), OK, "no cache"),
        (took(21, 22, 23), OK, "22 µs"),
        (took(0.7, 0.8, 9000), WARN, "sooner than any device"),
        (took(1.0, kind="tmpfs"), FAIL, "memory"),
        (took(400, preload="/usr/lib/libeatmydata.so"), FAIL, "eatmydata"),
        (took(300, device=Device(turns=True)), WARN, "turns"),
        (took(300, device=Device(turns=True, is_virtual=True)), OK, "host"),
        (took(8000, device=Device(turns=True)), OK, "8.0 ms"),
        (took(300, options=frozenset({"nobarrier"})), WARN, "barriers"),
        (took(90_000), WARN, "slow, about 11 a second"),
        (took(), WARN, "nothing"),
    ],
)
def test_times_of_syncs(facts: SyncFacts, verdict: Verdict, word: str) -> None:
    """Only what is impossible is suspicious; what is possible is not called proof."""
    check = sync_check(facts)

    assert check.verdict is verdict
    assert word in check.found
    assert remedied(check)


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (errno.ENOSPC, FAIL),
        (errno.EDQUOT, FAIL),
        (errno.EFBIG, FAIL),
        (errno.EIO, FAIL),
        (None, FAIL),
        (errno.EACCES, WARN),
        (errno.EROFS, WARN),
    ],
)
def test_a_sync_that_could_not_be_measured(number: int | None, verdict: Verdict) -> None:
    """A disk that refuses to write fails; that we may not write is told under permissions."""
    assert not_measured("it is so", number).verdict is verdict


# The probe ---------------------------------------------------------------------------------


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is timed as often as it may be, and is gone."""
    times = Probe(now_ns=lambda: 0).time_syncs(tmp_path)

    assert times == (0,) * SYNCS_MAX
    assert list(tmp_path.iterdir()) == []


def test_a_probe_on_a_slow_disk_ends_early(tmp_path: Path) -> None:
    """Some times are enough."""
    now = iter(range(0, 1 << 62, int(SYNCS_SECONDS_MAX * 1e9)))
    times = Probe(now_ns=lambda: next(now)).time_syncs(tmp_path)

    assert len(times) == SYNCS_MIN


@pytest.mark.parametrize("operation", ["write_at", "sync_data"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_probe_on_a_disk_that_fails_leaves_nothing_behind(
    tmp_path: Path, operation: str, error: int
) -> None:
    """A full disk is not made fuller."""
    disk = FaultyDisk()
    disk.fail(call=3, operation=operation, error=error)  # type: ignore[arg-type]

    with pytest.raises(OSError, match="Errno"):
        Probe(disk=disk).time_syncs(tmp_path)
    assert list(tmp_path.iterdir()) == []


class HangingDisk(Disk):
    """A disk whose syncs do not return."""

    def __init__(self) -> None:
        self.is_at_it = threading.Event()
        self.goes_on = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.is_at_it.set()
        self.goes_on.wait()


def test_a_probe_that_hangs_is_removed_all_the_same(tmp_path: Path) -> None:
    """The name goes, though the sync never comes back."""
    disk = HangingDisk()
    probe = Probe(disk=disk)
    thread = threading.Thread(target=probe.time_syncs, args=[tmp_path])
    thread.start()
    disk.is_at_it.wait()
    before = list(tmp_path.iterdir())
    probe.remove()
    after = list(tmp_path.iterdir())
    disk.goes_on.set()
    thread.join()

    assert (len(before), after) == (1, [])
    assert list(tmp_path.iterdir()) == []


def test_a_probe_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    """Who is interrupted before it begins leaves nothing either."""
    probe = Probe()
    probe.remove()

    assert probe.time_syncs(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


# Space -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_bytes", "files_free", "files_total", "verdicts"),
    [
        (100 * GIB, 1_000_000, 2_000_000, (OK, OK)),
        (100 * GIB, 0, 0, (OK, OK)),  # Files are made as they are needed.
        (GIB - 1, 9_999, 2_000_000, (WARN, WARN)),
        (16 << 20, 64, 2_000_000, (WARN, WARN)),
        ((16 << 20) - 1, 63, 2_000_000, (FAIL, FAIL)),
        (0, 0, 2_000_000, (FAIL, FAIL)),
    ],
)
def test_space(
    free_bytes: int, files_free: int, files_total: int, verdicts: tuple[Verdict, Verdict]
) -> None:
    """Two segments and one queue must fit; little is warned of."""
    facts = SpaceFacts(
        free_bytes=free_bytes,
        total_bytes=200 * GIB,
        files_free=files_free,
        files_total=files_total,
    )
    space, inodes = space_checks(facts)

    assert (space.verdict, inodes.verdict) == verdicts
    assert remedied(space)
    assert remedied(inodes)


def test_a_file_system_that_tells_no_sizes_is_not_taken_for_full() -> None:
    """Some have none to tell."""
    facts = SpaceFacts(free_bytes=0, total_bytes=0, files_free=0, files_total=0)

    assert [check.verdict for check in space_checks(facts)] == [INFO, OK]
