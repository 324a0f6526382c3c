"""Process that forks children for tests. It is warm, has no threads and no open log.

pytest itself must not fork: it may have threads, and a child would inherit its files. A fork of
this process costs a millisecond, so a test can start and kill hundreds of processes in seconds.
`processes.py` starts it and sends requests to it.

Every request has a number, and the answer repeats it. The server survives any request that fails:
it answers with the error. It never blocks on a child, so the next request is always read.
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
from tests.crash.fork_messages import MESSAGE_BYTES_MAX, Answer, Request

CHANNEL_FDS: Final = 2

Call = tuple[Callable[..., None], tuple[object, ...], dict[str, object]]
"""Function to call in a child, after its channel, and the arguments to call it with."""


def serve(connection: socket.socket) -> None:
    """Answer one request after another until the test closes the connection."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, CHANNEL_FDS)
        if not message:
            return
        request: Request = pickle.loads(message)
        pid_fds: list[int] = []
        try:
            result = _result_of(request, connection, fds, pid_fds)
            answer = Answer(number=request.number, result=result)
        except Exception:  # noqa: BLE001 - the test that asked must see any error, and no other test.
            answer = Answer(number=request.number, error=traceback.format_exc())
        # With the child's pid goes a descriptor of the process: a pid alone may be reused.
        socket.send_fds(connection, [pickle.dumps(answer)], pid_fds)
        for fd in fds + pid_fds:
            os.close(fd)


def _result_of(
    request: Request, connection: socket.socket, fds: list[int], pid_fds: list[int]
) -> int:
    """Return the pid of a new child, with its descriptor in `pid_fds`, or a child's exit code."""
    if request.reap_pid is not None:
        _, status = os.waitpid(request.reap_pid, 0)  # At once: it has ended.
        return os.waitstatus_to_exitcode(status)
    assert request.call is not None
    call: Call = pickle.loads(request.call)
    reports_fd, orders_fd = fds
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(call, reports_fd=reports_fd, orders_fd=orders_fd)
    pid_fds.append(os.pidfd_open(pid))
    return pid


def _run(call: Call, *, reports_fd: int, orders_fd: int) -> None:
    """Make the call and end the process, without running anything of the server's own."""
    status = 1
    try:
        target, arguments, keywords = call
        target(Channel(reports_fd=reports_fd, orders_fd=orders_fd), *arguments, **keywords)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the test that joins us must see it.
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as test:
        serve(test)
