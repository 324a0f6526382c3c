"""The fixture `task_bench`, for whoever has pytest and segue installed: nothing to set up.

def test_a_welcome_is_sent(task_bench):
    bench = task_bench(app)
    signup.enqueue("ada@example.org")
    assert bench.drain() == 1
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from segue.tasks import App
    from segue.testing.tasks import TaskBench


@pytest.fixture
def task_bench(tmp_path: Path) -> "Iterator[Callable[[App], TaskBench]]":
    """Return what puts an App on a bench: `segue.testing.tasks.TaskBench`, closed at the end."""
    # Imported here: every pytest run of everybody who has segue loads this module.
    from segue.testing.tasks import TaskBench

    with ExitStack() as benches:

        def put(app: "App") -> TaskBench:
            number = len(list(tmp_path.glob("segue-*")))
            return benches.enter_context(TaskBench(app, tmp_path / f"segue-{number}"))

        yield put
