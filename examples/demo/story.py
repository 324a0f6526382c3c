"""The acts of the demo, in their order. What they find out is an Outcome."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import segue
from examples.demo.evidence import BEGUN, DONE, Lines, Note, read_notes, totals, unfinished
from examples.demo.orders import CLOSING, DAY, OPENING
from examples.demo.outcome import CLEAN, RESULT, REVENUE, Outcome, Result, Return, Sample
from examples.demo.producers import HTTP, LIBRARY, TOPIC
from examples.demo.screen import Bars, Screen
from examples.demo.shop import CATALOGUE, POISON, app, read_catalogue
from examples.demo.stage import Child, Stage, is_running

LOOK_SECONDS: Final = 0.1
START_SECONDS_MAX: Final = 60
SETTLE_SECONDS_MAX: Final = 180
LEASE: Final = "4s"
"""Short, so that what a killed worker had is soon back; long enough for a busy machine."""
SEGMENT_BYTES: Final = 16 * 1024
"""Small, so that there are segments to free."""
BATCHES: Final = 4
"""How many Spark needs for the topic: enough to be killed between them."""
ORDERS: Final = "default"
WORKER: Final = "worker-1"
SELLING: Final = ("--queues", ORDERS, "--min", "4", "--max", "8")
POISONED: Final = "catalogue-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is sent."""

    library: int
    http: int
    catalogues: int
    pause_ms: int


FULL: Final = Size(library=2_400, http=1_200, catalogues=12, pause_ms=150)
SHORT: Final = Size(library=400, http=200, catalogues=4, pause_ms=100)


class DemoFailed(Exception):
    """The story cannot go on, because of a child or for another reason."""

    def __init__(self, why: str, *, child: str = "server") -> None:
        super().__init__(why)
        self.child = child


class Story:
    """Plays the acts on a stage."""

    def __init__(self, stage: Stage, screen: Screen, size: Size) -> None:
        self._stage = stage
        self._screen = screen
        self._size = size
        self._runs = Lines(stage.runs)
        self._notes: list[Note] = []
        self._server: Child
        self._workers: dict[str, Child] = {}
        self._samples: list[Sample] = []
        self._held: dict[str, Note] = {}
        self._killed_at = 0.0

    def play(self) -> Outcome:
        """Play all acts and return what they came to. Raises DemoFailed."""
        started = time.monotonic()
        app.use(self._stage.store)
        try:
            url = self._open_shop()
            killed = self._sell(url)
            returns = self._returned(killed)
            records = self._close_shop()
            result, driver_kills = self._run_pipeline(records)
            return self._outcome(
                killed=killed,
                returns=returns,
                records=records,
                result=result,
                driver_kills=driver_kills,
                verified=self._verify(),
                started=started,
            )
        finally:
            app.close()

    # Acts ----------------------------------------------------------------------------------

    def _open_shop(self) -> str:
        """Make a store, put a server before it, and start workers."""
        self._screen.act("A store in a temporary directory, a server with a dashboard, workers")
        rules = segue.TopicRules(segment_bytes=SEGMENT_BYTES)
        for topic in (TOPIC, CLEAN, REVENUE):
            app.store.topic(topic, partitions=2, rules=rules)
        store = str(self._stage.store)
        self._server = self._stage.start(
            "server", "segue", "serve", store, "--port", "0", is_heard=True
        )
        assert self._server.stdout is not None
        said = self._server.stdout.readline()
        if not said:
            raise DemoFailed("the server did not start")
        url = said.split()[-1]
        self._hire(WORKER, *SELLING)
        self._hire("worker-2", *SELLING)
        self._hire("reader-1", "--queues", CATALOGUE, "--kind", "process", "--max", "2")
        self._screen.say(f"the store is {store}")
        self._screen.say(f"the dashboard, while this runs: {url}/dash/")
        return url

    def _sell(self, url: str) -> int:
        """Have orders sent and fulfilled, and kill a worker amid that; return its number."""
        self._screen.act("Orders come in, by the library and over HTTP; a worker is killed")
        size, stage = self._size, self._stage
        sources = {LIBRARY: (str(stage.store), size.library), HTTP: (url, size.http)}
        senders = {
            name: stage.start(
                name,
                "examples.demo.producers",
                name,
                where,
                str(self._sent_path(name)),
                str(count),
                str(size.pause_ms),
            )
            for name, (where, count) in sources.items()
        }
        self._queue_catalogues()
        kill_after = (size.library + size.http) // 3
        killed = 0
        with self._screen.bars() as bars:
            for done in self._looks(bars):
                if not killed and done >= kill_after:
                    killed = self._kill_a_worker()
                self._require_well(senders)
                if not any(map(is_running, senders.values())) and self._waiting() == 0:
                    break
        for sender in senders.values():
            stage.end(sender)
        return killed

    def _returned(self, killed: int) -> Sequence[Return]:
        """Tell how what the killed worker had in its hands came back."""
        returns: list[Return] = []
        for work, before in self._held.items():
            again = [
                note
                for note in self._notes
                if note.work == work and note.what == BEGUN and note.attempt > before.attempt
            ]
            if not again:
                raise DemoFailed(f"{work} did not come back from the killed worker")
            after = again[0].at - self._killed_at
            returns.append(Return(work=work, after_seconds=after, attempt=again[0].attempt))
        returns.sort(key=lambda each: each.after_seconds)
        self._screen.say(
            f"{WORKER} (process {killed}) was killed with {len(returns)} orders in its hands:"
            f" {', '.join(self._held)}"
        )
        for each in returns[-1:]:
            self._screen.say(
                f"all of them went to others, the last one after {each.after_seconds:.1f} s,"
                f" as attempt {each.attempt}; their leases were {LEASE}"
            )
        return returns

    def _close_shop(self) -> int:
        """Send the workers home, and say in the topic that the day is over."""
        for worker in self._workers.values():
            self._stage.end(worker)
        topic = app.store.topic(TOPIC)
        topic.append(CLOSING, timestamp=OPENING + DAY * 2)
        for queue in (ORDERS, CATALOGUE):
            for letter in self._letters(queue)[:1]:
                self._screen.say(f"a dead letter of {queue}: {letter.cause}, {letter.reason}")
        return topic.info().count

    def _run_pipeline(self, records: int) -> tuple[Result, int]:
        """Stream the topic through Spark; its driver is killed once and started again."""
        self._screen.act("Spark: clean, sum by the hour, join with the dead letters, archive")
        kills = 0
        with self._screen.bars() as bars:
            bars.move("Spark starts", 0, 1)
            while True:
                was_killed = self._drive(bars, records, may_kill=kills == 0)
                if not was_killed:
                    break
                kills += 1
                bars.move("its driver is killed amid the batches", 1, 1)
        result = json.loads((self._stage.directory / RESULT).read_text())
        return Result(**result), kills

    def _verify(self) -> int:
        """Have every byte of the store checked; return how many records that were."""
        child = self._stage.start(
            "verify", "segue", "verify", str(self._stage.store), "--json", is_heard=True
        )
        assert child.stdout is not None
        said = child.stdout.read()
        if child.wait(START_SECONDS_MAX) != 0:
            raise DemoFailed(f"the store is damaged: {said}", child="verify")
        return sum(log["records"] for log in json.loads(said)["logs"])

    # Steps ---------------------------------------------------------------------------------

    def _hire(self, name: str, *arguments: str) -> None:
        self._workers[name] = self._stage.start(
            name,
            "segue",
            "worker",
            "examples.demo.shop:app",
            "--lease",
            LEASE,
            "--drain",
            "5s",
            "--name",
            name,
            *arguments,
        )

    def _queue_catalogues(self) -> None:
        names = [f"catalogue-{number}" for number in range(self._size.catalogues)]
        read_catalogue.starmap(
            (name, POISON if name == POISONED else "apples, pears") for name in names
        )
        self._sent_path(CATALOGUE).write_text("".join(f"{name}\n" for name in names))

    def _looks(self, bars: Bars) -> Iterator[int]:
        """Look again and again how far everything is; give how much is done."""
        size = self._size
        wanted = {LIBRARY: size.library, HTTP: size.http, CATALOGUE: size.catalogues}
        sent_lines = {name: Lines(self._sent_path(name)) for name in wanted}
        sent = dict.fromkeys(wanted, 0)
        done: set[str] = set()
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            for name, lines in sent_lines.items():
                sent[name] += len(lines.new())
                bars.move(f"sent: {name}", sent[name], wanted[name])
            self._read_notes()
            done |= {note.work for note in self._notes if note.what == DONE}
            dead = sum(len(self._letters(queue)) for queue in (ORDERS, CATALOGUE))
            bars.move("done, or a dead letter", len(done) + dead, sum(wanted.values()))
            self._samples.append(
                Sample(
                    at=time.time(), waiting=self._waiting(), sent=sum(sent.values()), done=len(done)
                )
            )
            yield len(done)
            time.sleep(LOOK_SECONDS)
        raise DemoFailed(f"{self._waiting()} messages are still not settled")

    def _kill_a_worker(self) -> int:
        """Kill a worker that has something in its hands, and hire another; 0 if it has nothing."""
        worker = self._workers[WORKER]
        if not unfinished(self._notes, worker.pid):
            return 0
        self._stage.kill(worker)
        self._killed_at = time.time()
        del self._workers[WORKER]
        self._read_notes()
        self._held = unfinished(self._notes, worker.pid)
        self._hire("worker-3", *SELLING)
        return worker.pid

    def _drive(self, bars: Bars, records: int, *, may_kill: bool) -> bool:
        """Run the Spark driver until it ends; tell whether it was killed under way."""
        child = self._stage.start(
            "spark",
            "examples.demo.pipeline",
            str(self._stage.store),
            str(self._stage.directory),
            str(max(1, records // BATCHES)),
            is_heard=True,
        )
        assert child.stdout is not None
        for line in child.stdout:
            said = json.loads(line)
            bars.move("Spark starts", 1, 1)
            is_over = said["is_over"]
            bars.move(said["step"], records if is_over else said["rows"], records)
            if may_kill and said["step"] == CLEAN and said["rows"] and not is_over:
                self._stage.kill(child)
                return True
        code = child.wait()
        if code != 0:
            raise DemoFailed(
                f"the Spark driver ended with {code}; `segue doctor` knows which Java it has",
                child="spark",
            )
        return False

    # Looks ---------------------------------------------------------------------------------

    def _require_well(self, senders: dict[str, Child]) -> None:
        """Raise DemoFailed if somebody ended that should not have."""
        for name, child in {"server": self._server, **self._workers}.items():
            if not is_running(child):
                self._stage.kill(child)  # What it had started may still run.
                raise DemoFailed(f"{name} ended with {child.returncode}", child=name)
        for name, child in senders.items():
            if not is_running(child) and child.wait() != 0:
                raise DemoFailed(f"the producer {name} ended with {child.wait()}", child=name)

    def _waiting(self) -> int:
        """Return how many messages are not settled."""
        counts = [app.store.queue(queue).count() for queue in (ORDERS, CATALOGUE)]
        return sum(count.ready + count.delayed + count.leased for count in counts)

    def _letters(self, queue: str) -> Sequence[segue.DeadLetter]:
        return list(app.store.queue(queue).dead_letters())

    def _read_notes(self) -> None:
        self._notes += read_notes(self._runs.new())

    def _sent_path(self, name: str) -> Path:
        return self._stage.directory / f"sent-{name}.txt"

    def _outcome(
        self,
        *,
        killed: int,
        returns: Sequence[Return],
        records: int,
        result: Result,
        driver_kills: int,
        verified: int,
        started: float,
    ) -> Outcome:
        self._read_notes()
        sent = {
            name: frozenset(Lines(self._sent_path(name)).new())
            for name in (LIBRARY, HTTP, CATALOGUE)
        }
        dead = {queue: set(map(_work_of, self._letters(queue))) for queue in (ORDERS, CATALOGUE)}
        return Outcome(
            totals=totals(
                sent,
                self._notes,
                dead=dead[ORDERS] | dead[CATALOGUE],
                killed={killed},
                poisoned={POISONED},
            ),
            orders={LIBRARY: self._size.library, HTTP: self._size.http},
            dead_orders=len(dead[ORDERS]),
            reasons=Counter(letter.reason for queue in dead for letter in self._letters(queue)),
            records=records,
            returns=returns,
            samples=self._samples,
            result=result,
            verified=verified,
            driver_kills=driver_kills,
            seconds=time.monotonic() - started,
        )


def _work_of(letter: segue.DeadLetter) -> str:
    return str(json.loads(letter.message.body)["args"]["order"])
