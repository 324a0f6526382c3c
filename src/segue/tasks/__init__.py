"""Tasks: functions that run later, and the workers that run them.

app.py         App: tasks by name, and the store they are queued in
task.py        a function that can be queued
signature.py   arguments and results as JSON
envelope.py    what the message of a task says
rules.py       how a task behaves, and what that asks of its queue; shapes.py has it by queue
states.py      the life of a task as a table
events.py      what happened to tasks: the log; topics.py reads it
index.py       records of tasks, derived from the log; its tables, rows and pages are beside it
desk.py        questions about tasks, and acts on them
standing.py    how a task stands whose message is there; walk.py goes through queues for them
tally.py       how many tasks there are
obituaries.py  finding one dead letter among many
results.py     the handle of a queued task; threads.py has short calls made for async code
cancelling.py  requests to cancel
schedule.py    when a schedule is due; scheduling.py has it fire once
autoscaler.py  how many workers there should be
metrics.py     counters and percentiles; prometheus.py shows them
worker/        what runs tasks
"""

from segue.extras import require

# ruff: noqa: E402 - what follows cannot be imported without the extra.
require("tasks", needed_by="segue.tasks")

from segue.delivery.retry import Backoff
from segue.tasks.app import App
from segue.tasks.context import GiveUp, Retry, TaskContext, current
from segue.tasks.records import TaskRecord
from segue.tasks.results import Result
from segue.tasks.schedule import Cron, Every
from segue.tasks.states import State
from segue.tasks.task import AsyncTask, Task
from segue.tasks.worker import Worker

__all__ = [
    "App",
    "AsyncTask",
    "Backoff",
    "Cron",
    "Every",
    "GiveUp",
    "Result",
    "Retry",
    "State",
    "Task",
    "TaskContext",
    "TaskRecord",
    "Worker",
    "current",
]
