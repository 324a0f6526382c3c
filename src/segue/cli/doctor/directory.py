"""All that is looked at in a directory, in the order in which it is told."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from segue.cli.doctor.check import Check
from segue.cli.doctor.clock import (
    ClockFacts,
    ClockReading,
    clock_checks,
    is_clock_synced,
    read_clocks,
)
from segue.cli.doctor.damage import NAME as DAMAGE
from segue.cli.doctor.damage import damage_check
from segue.cli.doctor.file_system import NAME as FILE_SYSTEM
from segue.cli.doctor.file_system import file_system_check, look_at_file_system
from segue.cli.doctor.holders import (
    NAME as PROCESSES,
)
from segue.cli.doctor.holders import (
    DeviceInode,
    holders_check,
    look_at_holders,
    process_name,
)
from segue.cli.doctor.limits import limit_checks, look_at_limits
from segue.cli.doctor.logs import Logs, look_at_logs
from segue.cli.doctor.mounts import Mount, look_up_mount
from segue.cli.doctor.permissions import NAME as PERMISSIONS
from segue.cli.doctor.permissions import look_at_permissions, permission_check, user_name
from segue.cli.doctor.probe import Probe
from segue.cli.doctor.running import Problem, checks_of, in_words, not_told, outcome_of
from segue.cli.doctor.space import SPACE, look_at_space, space_checks
from segue.cli.doctor.store_format import NAME as STORE
from segue.cli.doctor.store_format import look_at_store, nearest_directory, store_check
from segue.cli.doctor.syncing import NAME as SYNC
from segue.cli.doctor.syncing import look_at_device, not_measured, sync_check
from segue.cli.survey import is_store


def directory_checks(path: Path, probe: Probe, began: ClockReading) -> Iterator[Check]:
    """Yield how a store at `path` stands, and what it stands on. Writes the probe and no more."""
    nearest = outcome_of(lambda: nearest_directory(path))
    place = path if isinstance(nearest, Problem) else nearest
    found_mount = outcome_of(lambda: look_up_mount(place))
    mount = None if isinstance(found_mount, Problem) else found_mount
    logs = outcome_of(lambda: look_at_logs(path))
    known = Logs() if isinstance(logs, Problem) else logs

    yield from checks_of(STORE, lambda: [_store(path, place)])
    if isinstance(logs, Problem):
        yield not_told(DAMAGE, logs)
    else:
        yield damage_check(logs, path=str(path))
    yield from checks_of(PERMISSIONS, lambda: [_permissions(path, place, has_logs=known.count > 0)])
    yield from checks_of(PROCESSES, lambda: [_processes(known, mount)])
    yield from checks_of(
        FILE_SYSTEM, lambda: [file_system_check(look_at_file_system(place, mount))]
    )
    yield from checks_of(SYNC, lambda: [_sync(path, place, mount, probe)])
    yield from checks_of(SPACE, lambda: space_checks(look_at_space(place)))
    yield from checks_of(
        "limits",
        lambda: limit_checks(
            look_at_limits(place, path), logs=known.count, segment_bytes=known.segment_bytes
        ),
    )
    yield from checks_of("clock", lambda: clock_checks(_clock(began, known)))


def _store(path: Path, place: Path) -> Check:
    from segue.stores.file.store import FORMAT  # Here, as all that only this look needs.

    return store_check(look_at_store(path, place), format_known=FORMAT)


def _permissions(path: Path, place: Path, *, has_logs: bool) -> Check:
    is_ours = has_logs or is_store(path)
    facts = look_at_permissions(path, place=place, is_ours=is_ours)
    return permission_check(facts, name_of=user_name)


def _processes(logs: Logs, mount: Mount | None) -> Check:
    # Locks are listed by the device of the mount, which is not always that of its files.
    files: dict[DeviceInode, str] = {}
    if mount is not None:
        files = {(*mount.device, inode): log for inode, log in logs.live_files.items()}
    return holders_check(look_at_holders(files), name_of=process_name)


def _sync(path: Path, place: Path, mount: Mount | None, probe: Probe) -> Check:
    facts = look_at_device(mount)
    if path.exists() and not path.is_dir():
        return not_measured(
            f"{path} is a file", errno.ENOTDIR
        )  # Around it is nothing that is ours.
    try:
        return sync_check(replace(facts, took_us=probe.time_syncs(place)))
    except OSError as error:
        return not_measured(in_words(error), error.errno)


def _clock(began: ClockReading, logs: Logs) -> ClockFacts:
    return ClockFacts(
        before=began,
        after=read_clocks(),
        newest_us=logs.newest_us,
        newest_path=logs.newest_path,
        is_synced=is_clock_synced(),
    )
