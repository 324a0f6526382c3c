"""Tasks for the tests of the dashboard to look at, and workers that run them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest

import segue
from segue.server import estimates, paging, task_desk
from segue.server.letter_groups import LetterGroups
from segue.server.routes import breakdown, letters, overview
from segue.stores.file.store import FileStore
from segue.tasks import Task, TaskRecord, Worker, current, desk, tally
from tests.waiting import LIMIT_SECONDS

LOOK_SECONDS: Final = 0.01
WORKER: Final = "worker-1"
_LOOK: Final = LetterGroups.look.__kwdefaults__ or {}


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server look at everything before it answers, however busy the machine is."""
    monkeypatch.setattr(desk, "PAGE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(task_desk, "PATIENCE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(tally, "LOOK_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(estimates, "SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(letters, "PAGE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(breakdown, "CAUSES_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(overview, "PATIENCE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setitem(_LOOK, "wait_seconds", LIMIT_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """An App with a task that is done at once, one that is done when we say so, and a schedule."""

    app: segue.App
    resize: Task[[str], str]
    """Fails for what is broken, for as long as it is not mended."""
    crawl: Task[[str], str]
    """Runs until it may end, or is cancelled."""
    may_end: threading.Event = field(default_factory=threading.Event)
    is_mended: threading.Event = field(default_factory=threading.Event)

    def enqueue(self, *paths: str) -> list[str]:
        """Queue pictures to be resized; return the ids of the tasks."""
        return [self.resize.enqueue(path).id for path in paths]

    def work(self) -> None:
        """Run all that is queued, and return."""
        Worker(self.app, burst=True, name=WORKER).run()

    @contextmanager
    def working(self, *, size: int = 1) -> Iterator[Worker]:
        """Have a worker there for a while."""
        worker = Worker(self.app, min_size=size, max_size=size, drain=0, name=WORKER)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            self.may_end.set()
            worker.stop()
            thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()

    def record(self, task_id: str) -> TaskRecord:
        """Return what is known of a task."""
        return self.app.record(task_id)


@contextmanager
def studio_in(store: FileStore) -> Iterator[Studio]:
    """Have an App on the directory of a store, as another process would."""
    app = segue.App(store.place.root, sync="os")
    may_end, is_mended = threading.Event(), threading.Event()

    @app.task(retries=1, backoff=0.01)
    def resize(path: str) -> str:
        if "broken" in path and not is_mended.is_set():
            raise ValueError(f"cannot read image {path!r}")
        return f"{path} at 100"

    @app.task(retries=0, queue="crawling")
    def crawl(url: str) -> str:
        current().progress({"url": url, "done": 3, "of": 7})
        while not may_end.wait(LOOK_SECONDS):
            current().check()
        return f"all of {url}"

    @app.task(schedule="0 3 * * *")
    def report() -> str:
        return "written"

    try:
        yield Studio(app=app, resize=resize, crawl=crawl, may_end=may_end, is_mended=is_mended)
    finally:
        app.close()
