"""Fork server: runs `segue` and `python -c` in forks of a process that has Segue imported.

`docs_client.c` sends the requests, `docs_processes.py` starts the server. A command takes 40 ms of
CPU time instead of 250 ms. The forked process leaves the server's loop, takes on the state of the
client, runs the command and ends as a Python process does.
"""

import atexit
import contextlib
import gc
import io
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import IO, Final, NamedTuple

# Imported here once, instead of in every command: what the pages use most.
import opentelemetry.trace  # noqa: F401 - see above
import uvicorn  # noqa: F401 - see above

import segue.cli
import segue.cli.queue
import segue.cli.task
import segue.cli.topic
import segue.server.building
import segue.server.serving
import segue.stores.file.place
import segue.stores.file.store
import segue.stores.file.topics.topic
import segue.stores.opening
import segue.stores.redis.store
import segue.tasks  # noqa: F401 - see above

SOCKET: Final = "socket"
READY: Final = b"ready\n"
"""Written to standard output once a client can connect."""
_HEADER: Final = struct.Struct("=QIIII")
_STATUS: Final = struct.Struct("=i")
_FDS: Final = 4
_PENDING_MAX: Final = 128
_SIGNALS_MAX: Final = 64
_STREAMS: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}
_SEGUE: Final = Path(sys.executable).with_name("segue")
_READ_BY_IMPORTS: Final = ("PYTHON", "SEGUE_PURE_PYTHON", "LC_", "LANG")
"""Prefixes of variables that the interpreter or a module reads once, when it starts."""


class Request(NamedTuple):
    """A command and the state of the client that sent it."""

    command: str
    arguments: list[str]
    environment: dict[str, str]
    umask: int
    ignored: list[int]
    streams: list[int]
    directory: int

    @property
    def fds(self) -> list[int]:
        """Descriptors received with the request."""
        return [*self.streams, self.directory]


class Child(NamedTuple):
    """A forked process and the client that waits for it."""

    pid: int
    pidfd: int
    client: socket.socket


def serve(listener: socket.socket, owner: IO[bytes]) -> Request:
    """Fork a process per request. Returns the request in that process, and nowhere else.

    Exits when `owner` is closed, after killing the processes that still run.
    """
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(owner, selectors.EVENT_READ)
    children: set[Child] = set()
    while True:
        # One event at a time: handling it may close what the next one is about.
        key, _ = selector.select()[0]
        if key.fileobj is owner:
            for child in children:
                os.kill(child.pid, signal.SIGKILL)
            os._exit(0)
        elif key.fileobj is listener:
            client, _ = listener.accept()
            try:
                request = _receive(client)
            except (OSError, ValueError):  # One bad request must not end the server of all.
                request = None
            if request is None:
                client.close()
                continue
            pid = os.fork()
            if pid == 0:
                _close(selector, client, children)
                return request
            for fd in request.fds:
                os.close(fd)
            child = Child(pid, os.pidfd_open(pid), client)
            children.add(child)
            selector.register(child.client, selectors.EVENT_READ, child)
            selector.register(child.pidfd, selectors.EVENT_READ, child)
        elif isinstance(key.fileobj, socket.socket):
            if not _forward_signals(key.data):
                selector.unregister(key.fileobj)
        else:
            _report(key.data)
            children.remove(key.data)
            selector.unregister(key.fileobj)
            with contextlib.suppress(KeyError):
                selector.unregister(key.data.client)
            os.close(key.data.pidfd)
            key.data.client.close()


def _receive(client: socket.socket) -> Request | None:
    """Return a request, or None if the client died before it had sent one."""
    head, fds, _, _ = socket.recv_fds(client, _HEADER.size, _FDS, socket.MSG_WAITALL)
    if len(head) == _HEADER.size:
        ignored, size, count, umask, _ = _HEADER.unpack(head)
        body = client.recv(size, socket.MSG_WAITALL)
        if len(body) == size:
            strings = [os.fsdecode(each) for each in body.split(b"\0")[:-1]]
            return Request(
                command=strings[0],
                arguments=strings[1:count],
                environment=dict(each.split("=", 1) for each in strings[count:]),
                umask=umask,
                ignored=[number for number in range(1, _SIGNALS_MAX) if ignored >> number & 1],
                streams=fds[:-1],
                directory=fds[-1],
            )
    for fd in fds:
        os.close(fd)
    return None


def _forward_signals(child: Child) -> bool:
    """Send the child what its client was sent. Kill it and return False if the client is gone."""
    try:
        numbers = child.client.recv(_SIGNALS_MAX)
    except ConnectionError:
        numbers = b""
    for number in numbers or [signal.SIGKILL]:
        os.kill(child.pid, number)
    return bool(numbers)


def _report(child: Child) -> None:
    """Reap a child that has ended and tell its client how."""
    _, status = os.waitpid(child.pid, 0)
    with contextlib.suppress(ConnectionError):
        child.client.send(_STATUS.pack(status))


def _close(selector: selectors.BaseSelector, client: socket.socket, children: set[Child]) -> None:
    """Close, in a forked process, what belongs to the server. Standard streams are replaced."""
    for key in selector.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
    for child in children:
        child.client.close()
        os.close(child.pidfd)
    client.close()
    selector.close()


def take_on(request: Request) -> None:
    """Give this process the streams, directory, environment and signals of the client."""
    for number, fd in enumerate(request.streams):
        os.dup2(fd, number)
    os.fchdir(request.directory)
    for fd in request.fds:
        os.close(fd)
    os.umask(request.umask)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    changed = {
        name
        for name, _ in request.environment.items() ^ os.environ.items()
        if name.startswith(_READ_BY_IMPORTS)
    }
    os.environ.clear()
    os.environ.update(request.environment)
    if changed or (request.command == "python" and request.arguments[:1] != ["-c"]):
        program = _SEGUE.with_name(request.command)
        os.execv(program, [str(program), *request.arguments])
    time.tzset()
    for fd, (name, mode) in enumerate(_STREAMS.items()):
        stream = _stream(fd, mode, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(fd: int, mode: str, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a standard stream, made as Python makes it when it starts."""
    buffer = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115 - it is not a path.
    buffer.raw.name = before.name  # type: ignore[attr-defined]
    stream = io.TextIOWrapper(
        buffer,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n" if mode == "w" else None,
        line_buffering=fd == 2 or buffer.isatty(),
    )
    stream.mode = mode  # type: ignore[misc]  # As Python does.
    return stream


def run(request: Request) -> None:
    """Run the command as the main module of this process."""
    main = ModuleType("__main__")
    if request.command == "python":
        _, program, *words = request.arguments
        sys.argv = ["-c", *words]
        sys.path[0] = ""
        name = "<string>"
    else:
        name = str(_SEGUE.with_name(request.command))
        program = Path(name).read_text()
        sys.argv = [name, *request.arguments]
        sys.path[0] = str(_SEGUE.parent)
        main.__file__ = name
    sys.modules["__main__"] = main
    try:
        exec(compile(program, name, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as ended:
        if request.command == "segue" and isinstance(ended.code, int):
            _exit(ended.code)
        raise


def _exit(code: int) -> None:
    """End the process as Python does, except that memory is not freed: that takes 17 ms."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork would lose threads"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(sys.argv[1]) / SOCKET))
        listener.listen(_PENDING_MAX)
        gc.freeze()
        os.write(1, READY)
        request = serve(listener, sys.stdin.buffer)
    take_on(request)
    run(request)
