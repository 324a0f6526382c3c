"""Opening a large log after its writer was killed, and the memory that reading it takes."""

from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks.child import FILL_PAYLOAD_BYTES
from benchmarks.children import Child
from benchmarks.race import Figure, not_run
from benchmarks.report import Section, Target
from benchmarks.session import Session
from segue import Log
from segue.log.live import FILENAME as LIVE_FILENAME

OPEN_SECONDS_MAX: Final = 1.0
GROWTH_MAX: Final = 1.1
"""Of the memory needed to read ten times as much: a tenth is what allocators vary by."""
KILLED_AFTER_BYTES: Final = 16 * 1024 * 1024
DISK_FACTOR: Final = 1.2
_SETTING: Final = f'{FILL_PAYLOAD_BYTES:,}-byte payloads, sync="os", a new process each time'


def run(session: Session) -> None:
    """Write, kill, open and read at two sizes; the larger one counts."""
    effort = session.effort
    wanted_bytes = effort.reopen_bytes
    shortage = session.shortage(int(wanted_bytes * DISK_FACTOR))
    title = f"opening {wanted_bytes / 1e9:g} GB"
    if shortage is not None:
        session.report.add(
            Section(
                benchmark="reopen",
                title=title,
                setting=_SETTING,
                minute=session.minute(),
                figures=[not_run("after SIGKILL", shortage)],
                unit="s",
            )
        )
        return
    with session.place() as place:
        minute = session.minute()
        path = place / "log"
        peaks = []
        for size_bytes in (effort.reopen_small_bytes, wanted_bytes):
            _fill_and_kill(path, upto_bytes=size_bytes)
            peaks.append(_walk(path, size_bytes))
        killed = [
            _fill_and_kill(path, upto_bytes=wanted_bytes + turn * KILLED_AFTER_BYTES)
            for turn in range(effort.reopen_kills + 1)
        ][1:]  # The first one opens what `_walk` closed.
        powerless = [_open_without_live_page(path) for _ in range(effort.reopen_kills)]
        with Log(path, read_only=True) as log:
            segments = len(log.segments())
    figures = [
        Figure(name="after SIGKILL", samples=tuple(killed), note="of a process that was appending"),
        Figure(
            name="after SIGKILL, live page gone",
            samples=tuple(powerless),
            note="as after a power cut, but with a warm cache",
        ),
    ]
    section = Section(
        benchmark="reopen",
        title=title,
        setting=f"{_SETTING}, {segments} segments",
        minute=minute,
        figures=figures,
        unit="s",
    )
    session.report.add(section.aiming_at([_open_target(figure) for figure in figures]))
    session.report.add(_memory(session, peaks))


def _open_target(figure: Figure) -> Target:
    return Target(
        what=f"opening {figure.name}",
        measured=max(figure.samples),
        required=OPEN_SECONDS_MAX,
        at_most=True,
        unit="s",
    )


def _fill_and_kill(path: Path, *, upto_bytes: int) -> float:
    """Append until the log holds so much, kill the writer; return how long its opening took."""
    child = Child("fill", path)
    try:
        opened = child.hear()
        held = opened
        while held["next_offset"] * FILL_PAYLOAD_BYTES < upto_bytes:
            held = child.hear()
        child.hear()  # At least one more: nobody is killed before it appended.
    finally:
        child.kill()
    return opened["open_seconds"]


def _open_without_live_page(path: Path) -> float:
    """Open a log as after a restart of the machine, when the live page is not believed."""
    (path / LIVE_FILENAME).unlink()
    return _fill_and_kill(path, upto_bytes=0)


def _walk(path: Path, size_bytes: int) -> Figure:
    with closing(Child("walk", path)) as child:
        walked = child.hear()
    if walked["size_bytes"] < size_bytes:
        raise RuntimeError(f"read {walked['size_bytes']} of {size_bytes} bytes")
    rate = walked["size_bytes"] / walked["seconds"] / 1e9
    return Figure(
        name=f"peak memory, {size_bytes / 1e9:g} GB read",
        samples=(walked["peak_rss_bytes"] / 1e6,),
        note=f"{walked['records']:,} records one by one at {rate:.2g} GB/s",
    )


def _memory(session: Session, peaks: list[Figure]) -> Section:
    small, large = peaks
    return Section(
        benchmark="reopen",
        title="memory of a process that opens and reads all",
        setting="VmHWM of the whole process, Python and mapped pages included",
        minute=session.minute(),
        figures=peaks,
        unit="MB",
        targets=[
            Target(
                what=f"{large.name}, against the smaller log",
                measured=large.median / small.median,
                required=GROWTH_MAX,
                at_most=True,
            )
        ],
    )
