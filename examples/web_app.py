"""A web app with background tasks: a request queues the work, a worker does it, a page shows it.

    python examples/web_app.py

runs the app and a worker, asks for the factors of some numbers as browsers do, prints the answers,
and fails unless they are right. To have it for yourself, in two shells:

    cd examples && uvicorn web_app:site --port 8080    # then open http://127.0.0.1:8080
    cd examples && segue worker web_app:app            # may be killed and started at any time
"""

import json
import math
import socket
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import chdir
from typing import cast

import uvicorn

import segue
from segue.errors import InvalidArgument, ResultTimeout, TaskNotFound
from segue.tasks import Worker

Message = dict[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = tuple[int, str, dict[bytes, bytes]]

FORM = '<form method="post" action="/"><input name="number"><button>factors</button></form>'

app = segue.App("data")


@app.task(unique=True, timeout=60)  # who clicks twice asks once
def factors(number: int) -> list[int]:
    """Return the prime factors of a number: what takes too long for a request."""
    found, divisor = [], 2
    while divisor * divisor <= number:
        if number % divisor:
            divisor += 1
        else:
            found.append(divisor)
            number //= divisor
    return [*found, number]


async def site(scope: Message, receive: Receive, send: Send) -> None:
    """Answer a request, as ASGI has it."""
    if scope["type"] != "http":
        raise NotImplementedError("nothing is to be done before the first request")
    path = cast("str", scope["path"]).strip("/")
    if scope["method"] == "POST":
        status, text, more = await take(urllib.parse.parse_qs(await read_body(receive)))
    else:
        status, text, more = await show(path) if path else (200, FORM, {})
    headers = [(b"content-type", b"text/html"), *more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def take(form: dict[bytes, list[bytes]]) -> Answer:
    """Queue what the form asks for, and lead to the page of the task."""
    try:
        result = await factors.enqueue_async(int(form[b"number"][0]))  # durable from here on
    except (KeyError, ValueError):
        return 400, FORM, {}
    return 303, "", {b"location": f"/{result.id}".encode()}


async def show(task_id: str) -> Answer:
    """Return the page of a task, which waits a second for the result before it says not yet."""
    try:
        return 200, str(await app.result(task_id).get_async(timeout=1)), {}
    except ResultTimeout:
        return 202, "not yet", {b"refresh": b"1"}  # the browser asks again
    except (InvalidArgument, TaskNotFound):
        return 404, "nobody asked for that", {}


async def read_body(receive: Receive) -> bytes:
    """Return the body of a request, in however many pieces it comes."""
    body, piece = b"", Message(more_body=True)
    while piece.get("more_body"):
        piece = await receive()
        body += cast("bytes", piece.get("body", b""))
    return body


def ask(url: str, number: int) -> str:
    """Send the form, follow to the page of the task, look until it is done; return all of it."""
    with urllib.request.urlopen(url, data=b"number=%d" % number) as page:
        place, status, text = page.url, page.status, page.read().decode()
    while status == 202:
        with urllib.request.urlopen(place) as page:
            status, text = page.status, page.read().decode()
    if math.prod(json.loads(text)) != number:
        raise SystemExit(f"the factors of {number} are not {text}")
    return f"{number} is the product of {text}, says task {place.removeprefix(url)}"


def main() -> None:
    """Serve on a free port, with a worker beside, and be the browser."""
    with socket.create_server(("127.0.0.1", 0)) as listener, app:
        server = uvicorn.Server(uvicorn.Config(site, log_level="warning"))
        worker = Worker(app)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        working = threading.Thread(target=worker.run)
        serving.start()
        working.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            for number in (3 * 5 * 7, 99_989 * 99_991, 3 * 5 * 7):
                print(ask(url, number))
        finally:
            server.should_exit = True
            worker.stop()
            serving.join()
            working.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory, chdir(directory):
        main()
