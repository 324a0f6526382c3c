"""What rolling costs: the same records into segments of different sizes.

The default size should be the smallest power of two that costs at most a tenth of the speed of a
segment that never rolls.
"""

from contextlib import ExitStack
from typing import Final

from benchmarks.race import Contestant, Figure, race_stretches
from benchmarks.report import Section, Target
from benchmarks.session import Session
from benchmarks.stores import BATCH_RECORDS, Payloads, SegueLog
from segue.log.layout import SEGMENT_BYTES_DEFAULT

MIB: Final = 1024 * 1024
SIZES_MIB: Final = (1, 2, 4, 8, 16, 32, 64)
UNROLLED_MIB: Final = 512
PAYLOAD_BYTES: Final = 100
COST_MAX: Final = 0.10
TURNS: Final = 10


def run(session: Session) -> None:
    """Race the sizes against each other, one by one and a thousand at a time."""
    for records_per_operation in (1, BATCH_RECORDS):
        session.report.add(_race(session, records_per_operation))


def _race(session: Session, records_per_operation: int) -> Section:
    effort = session.effort
    payloads = Payloads(PAYLOAD_BYTES)
    with session.place() as place, ExitStack() as stack:
        contestants = []
        for size_mib in (*SIZES_MIB, UNROLLED_MIB):
            store = SegueLog(place / str(size_mib), segment_bytes=size_mib * MIB)
            stack.callback(store.close)
            contestants.append(_contestant(store, size_mib, payloads, records_per_operation))
        minute = session.minute()
        figures = race_stretches(
            contestants,
            count=effort.roll_records // TURNS // records_per_operation,
            rounds=effort.roll_rounds,
            turns=TURNS,
        )
    *rolled, unrolled = figures
    how = "one by one" if records_per_operation == 1 else f"x {records_per_operation}"
    return Section(
        benchmark="segment_size",
        title=f"{PAYLOAD_BYTES} bytes {how}",
        setting=(
            f'sync="os", exclusive, {effort.roll_records:,} records into a new log per round, '
            f"{effort.roll_rounds} rounds in {TURNS} turns"
        ),
        minute=minute,
        figures=figures,
        baselines=_names(unrolled, max(figures, key=lambda figure: figure.median)),
        conclusion=_conclusion(rolled, unrolled),
        targets=[_target(figure, unrolled, how) for figure in rolled if _is_default(figure)],
    )


def _contestant(
    store: SegueLog, size_mib: int, payloads: Payloads, records_per_operation: int
) -> Contestant:
    return Contestant(
        name=_name(size_mib),
        prepare=(
            (lambda count: store.singles(payloads.take(count)))
            if records_per_operation == 1
            else (lambda count: store.batches(payloads.batch, count))
        ),
        records_per_operation=records_per_operation,
        renew=store.renew,
        note=store.note,
    )


def _name(size_mib: int) -> str:
    return f"{size_mib} MiB"


def _names(unrolled: Figure, fastest: Figure) -> tuple[str, ...]:
    """Return what to compare with: should a size that rolls be faster, nobody can miss it."""
    return tuple(dict.fromkeys((unrolled.name, fastest.name)))


def _is_default(figure: Figure) -> bool:
    return figure.name == _name(SEGMENT_BYTES_DEFAULT // MIB)


def _conclusion(rolled: list[Figure], unrolled: Figure) -> str:
    """Say which is the smallest size from which on all sizes are cheap enough."""
    smallest = None
    for figure in reversed(rolled):
        if figure.ratio(unrolled) < 1 - COST_MAX:
            break
        smallest = figure.name
    if smallest is None:
        return f"no size costs at most {COST_MAX:.0%} of {unrolled.name}"
    return f"{smallest} is the smallest size that costs at most {COST_MAX:.0%} of {unrolled.name}"


def _target(figure: Figure, unrolled: Figure, how: str) -> Target:
    return Target(
        what=f"{PAYLOAD_BYTES} bytes {how}: the default of {figure.name} against no rolling",
        measured=figure.ratio(unrolled),
        required=1 - COST_MAX,
    )
