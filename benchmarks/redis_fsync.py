"""What it costs to have each push on the device: the server syncs always, or every second.

The setting is changed on the one server before each call, so that both take turns call by call and
meet the same device. With `?fsync=yes` Segue also has the server confirm that its file is synced
(WAITAOF).
"""

from functools import partial
from typing import Final

import segue
from benchmarks.race import Contestant, Job, race_call_by_call
from benchmarks.redis_bench import PAYLOAD_BYTES, WHERE, Bench, Fsync, Valkey
from benchmarks.redis_peers import QUEUE, Way, segue_ways, ways
from benchmarks.report import Section
from benchmarks.stores import Payloads

SIZES: Final = (1, 100)
BASELINES: Final = ("Segue, everysec", "bare list, always")


def run(bench: Bench) -> None:
    """Race pushes one by one and by 100."""
    bench.server.clean()
    payloads = Payloads(PAYLOAD_BYTES)
    try:
        with (
            ways(bench.server, payloads) as found,
            segue.open(f"{bench.server.url}?fsync=yes&namespace=synced") as synced,
        ):
            confirmed = segue_ways(synced.queue(QUEUE), payloads)
            for size in SIZES:
                bench.session.report.add(_race(bench, found, confirmed, size))
    finally:
        bench.server.fsync("everysec")


def _race(bench: Bench, found: list[Way], confirmed: list[Way], size: int) -> Section:
    pace = bench.session.effort.pace
    minute = bench.session.minute()
    pushes = [way for way in found if _pushes(way, size)]
    mine, bare = pushes[0], next(way for way in pushes if way.is_ceiling)
    with_wait = next(way for way in confirmed if _pushes(way, size))
    entries: list[tuple[str, Way, Fsync]] = [
        ("Segue, everysec", mine, "everysec"),
        ("Segue, always", mine, "always"),
        ("Segue, always and ?fsync=yes", with_wait, "always"),
        ("bare list, everysec", bare, "everysec"),
        ("bare list, always", bare, "always"),
    ]
    contestants = [
        Contestant(
            name=name,
            prepare=partial(_prepared, bench.server, way, when, size),
            records_per_operation=size,
            renew=way.renew,
            note=partial(str, way.how or way.name),
        )
        for name, way, when in entries
    ]
    return Section(
        benchmark="redis_fsync",
        title="push one by one" if size == 1 else f"push by {size}",
        setting=f"{WHERE}, append-only file, appendfsync as said, one client process, call by call "
        f"in turn, {pace.rounds} rounds",
        minute=minute,
        figures=race_call_by_call(contestants, pace),
        unit="messages/s",
        baselines=BASELINES,
    )


def _pushes(way: Way, size: int) -> bool:
    return way.step == "enqueue" and way.in_batches == (size > 1)


def _prepared(server: Valkey, way: Way, when: Fsync, size: int, count: int) -> Job:
    """Return the job, with the setting changed and nothing left over to be synced in its time."""
    server.fsync("always")
    server.client.set("bench:synced", 1)
    server.fsync(when)
    return way.prepare(size, count)
