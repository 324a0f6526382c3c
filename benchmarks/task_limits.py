"""What limits cost: the same tasks with a rate, a concurrency, keys, tenants and all of them.

Every limit is wide enough to hold nothing up, so that what is measured is the work of keeping it.
One worker of four threads in this process; the tasks are queued before the clock starts.
"""

import time
from collections.abc import Callable
from typing import Final

from benchmarks.race import Figure
from benchmarks.report import Section
from benchmarks.session import FULL, Session
from segue.tasks import App, Worker

SLOTS: Final = 4
KEYS: Final = 1_000
WIDE: Final = 1_000_000
TENANTS: Final = ("ada", "bob")
LIMITS: Final = ("no limits", "a rate", "a concurrency", "keys", "two tenants", "all together")
COUNTS: Final = {True: 10_000, False: 500}
ROUNDS: Final = {True: 3, False: 1}


def run(session: Session) -> None:
    """Work off no-ops, and tasks of a millisecond, under each limit in turn."""
    is_full = session.effort is FULL
    for title, seconds in (("no-ops", 0.0), ("tasks that take a millisecond", 0.001)):
        minute = session.minute()
        count = COUNTS[is_full]
        samples: dict[str, list[float]] = {limit: [] for limit in LIMITS}
        for number in range(ROUNDS[is_full]):
            for limit in LIMITS:
                directory = session.directory / f"limits-{seconds}-{number}-{limit}"
                app = App(directory, sync="os", weights=dict.fromkeys(TENANTS, 1))
                samples[limit].append(_rate_of(app, limit, count, seconds))
        session.report.add(
            Section(
                benchmark="task_limits",
                title=f"what limits cost {title}",
                setting=f'{count:,} tasks, {SLOTS} threads, sync="os", {ROUNDS[is_full]} rounds',
                minute=minute,
                figures=[Figure(name=limit, samples=tuple(samples[limit])) for limit in LIMITS],
                unit="tasks/s",
                baselines=[LIMITS[0]],
            )
        )


def _rate_of(app: App, limit: str, count: int, seconds: float) -> float:
    """Return how many tasks a second are done under a limit."""
    is_all = limit == LIMITS[-1]
    has_keys = is_all or limit == "keys"

    @app.task(
        name="work",
        queue="work",
        retries=0,
        key="key" if has_keys else None,
        rate=WIDE if is_all or limit == "a rate" else None,
        burst=WIDE if is_all or limit == "a rate" else None,
        concurrency=WIDE if limit == "a concurrency" else None,
    )
    def work(key: str) -> None:
        if seconds:
            _spin(time.perf_counter, seconds)

    if is_all:
        app.queue("work", concurrency=WIDE)
    keys = [str(number % KEYS) for number in range(count)]
    with app:
        if is_all or limit == "two tenants":
            half = count // len(TENANTS)
            for tenant in TENANTS:
                work.using(tenant=tenant).map(keys[:half])
            count = half * len(TENANTS)
        else:
            work.map(keys)
        began = time.perf_counter()
        Worker(app, min_size=SLOTS, max_size=SLOTS, limit=count).run()
        return count / (time.perf_counter() - began)


def _spin(clock: Callable[[], float], seconds: float) -> None:
    end = clock() + seconds
    while clock() < end:
        pass
