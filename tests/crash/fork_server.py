"""A process that forks children for tests: warm, without threads and without an open log.

pytest itself must not fork: it may have threads, and a child would inherit its files. A fork of
this one costs a millisecond, so hundreds of processes can be started and killed in seconds.
`processes.py` starts it and speaks to it.
"""

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final

# What children open is imported when it is opened: once here, or else in each of them.
import segue.stores.file.place
import segue.stores.file.store
import segue.stores.opening  # noqa: F401 - see above
from tests.crash.channel import Channel

MESSAGE_BYTES_MAX: Final = 64 * 1024
CHANNEL_FDS: Final = 2

Request = tuple[Callable[..., None], tuple[object, ...], dict[str, object]]
"""A function to call in the child, after its channel, and what to call it with."""


def serve(connection: socket.socket) -> None:
    """Fork a child per call received, reap one per pid received, until the test goes away."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, CHANNEL_FDS)
        if not message:
            return
        request: int | Request = pickle.loads(message)
        if isinstance(request, int):
            _, status = os.waitpid(request, 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                _run(request, Channel(reports_fd=fds[0], orders_fd=fds[1]))
            for fd in fds:
                os.close(fd)
        connection.send(pickle.dumps(answer))


def _run(request: Request, channel: Channel) -> None:
    """Make the call and end the process, without running anything of the server's own."""
    status = 1
    try:
        target, arguments, keywords = request
        target(channel, *arguments, **keywords)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the test that joins us must see it.
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as test:
        serve(test)
