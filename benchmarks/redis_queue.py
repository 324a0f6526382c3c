"""A queue on a server: push, pop, lease and ack, beside bare lists and streams of redis-py."""

from functools import partial
from typing import Final, get_args

from benchmarks.race import Contestant, race
from benchmarks.redis_bench import EVERYSEC, PAYLOAD_BYTES, SEGUE, WHERE, Bench
from benchmarks.redis_peers import Step, Way, ways
from benchmarks.report import Section, Target
from benchmarks.stores import Payloads

SIZES: Final = (1, 100, 1000)
COUNT_MAX: Final = 100_000
"""Messages of a slice."""
CEILING_FACTOR: Final = 0.7


def run(bench: Bench) -> None:
    """Race each step one by one, by 100 and by 1,000, from a client of one process."""
    bench.server.clean()
    steps: tuple[Step, ...] = get_args(Step)
    with ways(bench.server, Payloads(PAYLOAD_BYTES)) as found:
        for step in steps:
            for size in SIZES:
                chosen = [way for way in found if way.step == step and way.in_batches == (size > 1)]
                bench.session.report.add(_race(bench, chosen, step, size))
                for way in chosen:
                    way.renew()


def _race(bench: Bench, found: list[Way], step: Step, size: int) -> Section:
    pace = bench.session.effort.pace
    minute = bench.session.minute()
    contestants = [
        Contestant(
            name=way.name,
            prepare=partial(way.prepare, size),
            records_per_operation=size,
            count_max=COUNT_MAX // size,
            renew=way.renew,
            note=partial(str, way.how),
        )
        for way in found
    ]
    ceiling = next(way.name for way in found if way.is_ceiling)
    how = "one by one" if size == 1 else f"by {size:,}"
    section = Section(
        benchmark="redis_queue",
        title=f"{step} {how}",
        setting=f"{WHERE}, {EVERYSEC}, one client process, slices of {pace.slice_seconds} s "
        f"in turn, {pace.rounds} rounds",
        minute=minute,
        figures=race(contestants, pace),
        unit="messages/s",
        baselines=(SEGUE, ceiling),
    )
    mine, theirs = section.figure(SEGUE), section.figure(ceiling)
    assert mine is not None
    assert theirs is not None
    if size == 1:
        return section
    return section.aiming_at(
        [
            Target(
                what=f"redis: {section.title}: against {ceiling}",
                measured=mine.ratio(theirs),
                required=CEILING_FACTOR,
            )
        ]
    )
