"""What the system allows a process, against what the logs of a store take. No memory is locked."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.store_arguments import FILES_MAX
from segue.cli.text import human_size
from segue.log.layout import SEGMENT_BYTES_DEFAULT
from segue.values import dataclass

OPEN_FILES: Final = "open files"
MAPPINGS: Final = "mappings"
FILE_SIZE: Final = "file size"
NAMES: Final = "names"
DESCRIPTORS_PER_LOG: Final = 8
"""At most: six for a lane or partition that is used, eight for a lock."""
MAPPINGS_PER_LOG: Final = 8
DESCRIPTORS_SPARE: Final = 64
MAPPINGS_SPARE: Final = 4_096
"""What the rest of a Python process has open and mapped, generously."""
DESCRIPTORS_USUAL: Final = 1_024
NAME_BYTES: Final = 255
"""What the names of queues, topics and readers may take up."""
BELOW_BYTES_MAX: Final = 3 * NAME_BYTES + 128
"""What stands behind the path of a store: names, their directories, a temporary file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """What is allowed; None stands for as much as one likes, or for what cannot be told."""

    files_soft: int | None
    files_hard: int | None
    file_bytes_max: int | None
    mappings_max: int | None
    name_bytes_max: int | None = None
    path_bytes_max: int | None = None
    path_bytes: int = 0
    """Of the store."""


def limit_checks(facts: LimitFacts, *, logs: int, segment_bytes: int) -> Iterator[Check]:
    """Yield whether a process may use all `logs` at once, whose segments are that large."""
    yield _open_files(facts, logs)
    yield _mappings(facts, logs)
    largest_bytes = max(segment_bytes, SEGMENT_BYTES_DEFAULT)
    if facts.file_bytes_max is None:
        yield ok(FILE_SIZE, "no limit")
    elif facts.file_bytes_max < largest_bytes:
        yield fail(
            FILE_SIZE,
            f"at most {human_size(facts.file_bytes_max)}, and a segment takes "
            f"{human_size(largest_bytes)}",
            "ulimit -f unlimited; LimitFSIZE=infinity for systemd",
        )
    else:
        yield ok(FILE_SIZE, f"at most {human_size(facts.file_bytes_max)}")
    yield _names(facts)


def _open_files(facts: LimitFacts, logs: int) -> Check:
    needed = logs * DESCRIPTORS_PER_LOG + DESCRIPTORS_SPARE
    found = f"{_amount(facts.files_soft)} allowed, {_amount(facts.files_hard)} at most"
    if logs:
        found += f"; all {logs:,} logs at once take some {needed:,}"
    remedy = f"ulimit -n {max(needed, FILES_MAX)}, LimitNOFILE={max(needed, FILES_MAX)} for systemd"
    if facts.files_hard is not None and facts.files_hard < needed:
        return fail(OPEN_FILES, found, remedy)
    if facts.files_soft is not None and facts.files_soft < needed:
        return warn(OPEN_FILES, found, f"{remedy}; 'segue worker' and 'serve' do so by themselves")
    if facts.files_soft is not None and facts.files_soft < DESCRIPTORS_USUAL:
        return warn(OPEN_FILES, found, remedy)
    return ok(OPEN_FILES, found)


def _mappings(facts: LimitFacts, logs: int) -> Check:
    if facts.mappings_max is None:
        return info(MAPPINGS, "the limit cannot be told")
    needed = logs * MAPPINGS_PER_LOG + MAPPINGS_SPARE
    found = f"{facts.mappings_max:,} allowed"
    if facts.mappings_max < needed:
        return warn(
            MAPPINGS,
            f"{found}; a process with all {logs:,} logs takes some {needed:,}",
            f"sysctl vm.max_map_count={max(needed, 65_530)}",
        )
    return ok(MAPPINGS, found)


def _names(facts: LimitFacts) -> Check:
    if facts.path_bytes_max is not None and facts.path_bytes + BELOW_BYTES_MAX > (
        facts.path_bytes_max
    ):
        return fail(
            NAMES,
            f"the path has {facts.path_bytes:,} bytes, and all of one at most "
            f"{facts.path_bytes_max:,}",
            "a shorter path",
        )
    if facts.name_bytes_max is not None and facts.name_bytes_max < NAME_BYTES:
        return warn(
            NAMES,
            f"at most {facts.name_bytes_max} bytes each",
            "short names of queues, topics and readers, or another file system",
        )
    return ok(NAMES, "as long as Segue allows them")


def _amount(number: int | None) -> str:
    return "any number" if number is None else f"{number:,}"


def look_at_limits(place: Path, store: Path) -> LimitFacts:
    """Return what is allowed to us, where a directory lies that is there. Raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return LimitFacts(
        files_soft=_finite(soft),
        files_hard=_finite(hard),
        file_bytes_max=_finite(file_bytes),
        mappings_max=_number_in(Path("/proc/sys/vm/max_map_count")),
        name_bytes_max=os.pathconf(place, "PC_NAME_MAX"),
        path_bytes_max=os.pathconf(place, "PC_PATH_MAX"),
        path_bytes=len(os.fsencode(store.absolute())),
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
