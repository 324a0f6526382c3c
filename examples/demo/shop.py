"""The shop's App: tasks that work, fail, are slow, or kill the process they run in.

Workers find it as `examples.demo.shop:app`. What a task does to the world is a line in a file: it
is there whatever becomes of the worker, so it can testify for or against the queue.
"""

import os
import signal
import time
from typing import Final

import segue
from examples.demo import orders
from examples.demo.evidence import BEGUN, DONE, FAILED, note_run
from segue.tasks import GiveUp, current

STORE_VARIABLE: Final = "SEGUE_DEMO_STORE"
CATALOGUE: Final = "catalogue"
"""The queue of what may kill its process."""
SLOW_SECONDS: Final = 1.0
POISON: Final = "poison"

app = segue.App(os.environ.get(STORE_VARIABLE, "data"))


@app.task(retries=3, backoff=0.3, timeout=20)
def fulfil(order: str, customer: str, item: str, cents: int, payment: str) -> str:
    """Take the money and send the goods."""
    note_run(order, BEGUN, current().attempt)
    if payment == orders.SLOW:
        time.sleep(SLOW_SECONDS)
    if payment == orders.BROKEN or (payment == orders.FLAKY and current().attempt == 1):
        note_run(order, FAILED, current().attempt)
        raise ConnectionError("the bank did not answer")
    if payment == orders.REFUSED:
        note_run(order, FAILED, current().attempt)
        raise GiveUp("the bank refused the card")
    note_run(order, DONE, current().attempt)
    return f"{item} for {customer}, {cents / 100:.2f}"


@app.task(queue=CATALOGUE, retries=2, backoff=0.2, timeout=20)
def read_catalogue(order: str, content: str) -> int:
    """Read a catalogue; one of them is more than any reader survives."""
    note_run(order, BEGUN, current().attempt)
    if content == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    note_run(order, DONE, current().attempt)
    return len(content)
