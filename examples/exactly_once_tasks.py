"""A task may run more than once; what it does need not: its effect and its id in one transaction.

A worker that dies after the effect and before its ack has the task run again. The database that has
the effect also knows that it has it.
"""

import sqlite3
from contextlib import closing

from segue.tasks import App, Retry, Worker, current

app = App("data")


@app.task
def credit(name: str, cents: int) -> int:
    with closing(sqlite3.connect("accounts.sqlite3")) as database:
        with database:  # one transaction: both or none
            first = database.execute("INSERT OR IGNORE INTO done VALUES (?)", (current().id,))
            if first.rowcount:
                database.execute(
                    "UPDATE account SET cents = cents + ? WHERE name = ?", (cents, name)
                )
        if current().attempt == 1:
            raise Retry("as if the worker had died here: done, but nobody knows", delay=0.1)
        (balance,) = database.execute(
            "SELECT cents FROM account WHERE name = ?", (name,)
        ).fetchone()
        return int(balance)


if __name__ == "__main__":
    with closing(sqlite3.connect("accounts.sqlite3")) as accounts, accounts:
        accounts.execute("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY)")
        accounts.execute("CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, cents INT)")
        accounts.execute("INSERT OR REPLACE INTO account VALUES ('ada', 0)")

    with app:
        result = credit.enqueue("ada", 1000)
        Worker(app, limit=2).run()  # two tries, then it ends
        print(result.record().attempt, result.get())  # 2 1000
