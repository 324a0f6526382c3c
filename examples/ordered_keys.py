"""Messages of one account in order, although four workers share the queue.

Every account gets a row of steps, such as +7, then *3, then -2: any other order gives another
balance. Some steps fail at their first try. In a group those behind them wait, and other accounts
go on.

    python examples/ordered_keys.py

It runs the same steps without groups and with, prints how many balances are right, and fails unless
with groups all of them are. (Tasks have the same by `@app.task(key="account")`.)
"""

import contextlib
import random
import tempfile
import threading
import time
from collections import defaultdict
from functools import reduce

import segue

ACCOUNTS = [f"account-{number}" for number in range(8)]
STEPS = 15
WORKERS = 4
RULES = segue.QueueRules(backoff_base=0.05)  # and group_concurrency=1, which is the default


def steps_of(account: str) -> list[str]:
    """Return the steps of an account, the same ones each time."""
    dice = random.Random(account)
    return [f"{dice.choice('+-*')}{dice.randint(2, 9)}" for _ in range(STEPS)]


def after(balance: int, step: str) -> int:
    """Return the balance after a step."""
    amount = int(step[1:])
    return {"+": balance + amount, "-": balance - amount, "*": balance * amount}[step[0]]


def work(queue: segue.Queue, balances: dict[str, int], hands: dict[str, set[str]]) -> None:
    """Take steps until none comes for a second. One of several threads."""
    for job in queue.consume(wait=1):
        account, number, step = job.text.split()
        with contextlib.suppress(ConnectionError), job:
            if int(number) % 5 == 2 and job.attempt == 1:
                raise ConnectionError("the bank does not answer")  # tried again, after the backoff
            balance = balances[account]
            time.sleep(0.001)  # the others' turn: none of them may have the same account now
            balances[account] = after(balance, step)
            hands[account].add(threading.current_thread().name)


def run(store: segue.Store, name: str, *, in_groups: bool) -> int:
    """Push all steps, have them worked off, and return how many balances are right."""
    queue = store.queue(name, RULES)
    plans = {account: steps_of(account) for account in ACCOUNTS}
    queue.push_many(
        segue.Item(body=f"{account} {number} {steps[number]}", group=account if in_groups else None)
        for number in range(STEPS)
        for account, steps in plans.items()
    )
    balances: dict[str, int] = defaultdict(int)
    hands: dict[str, set[str]] = defaultdict(set)
    workers = [threading.Thread(target=work, args=(queue, balances, hands)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    right = sum(balances[account] == reduce(after, steps, 0) for account, steps in plans.items())
    most = max(len(names) for names in hands.values())
    print(f"{name}: {right} of {len(ACCOUNTS)} balances right, up to {most} workers for each")
    return right


def main(path: str) -> None:
    """Run it both ways."""
    with segue.open(path, sync="interval") as store:
        run(store, "without-groups", in_groups=False)
        if run(store, "with-groups", in_groups=True) != len(ACCOUNTS):
            raise SystemExit("steps of an account were out of order, lost or doubled")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory:
        main(directory)
