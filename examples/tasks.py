"""A task, queued and worked off: the quickstart of tasks, as the README has it."""

import segue
from segue.tasks import Worker

app = segue.App("data")


@app.task(retries=5, timeout=30)
def resize(path: str, width: int = 100) -> str:
    return f"{path} at {width}"


result = resize.enqueue("a.png")  # durable when it returns; resize("a.png") runs it here
Worker(app, burst=True).run()  # elsewhere: segue worker jobs:app --max 16
print(result.get(timeout=5), result.state)
