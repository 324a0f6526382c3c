"""Ports on the loopback for servers of tests."""

import random
import socket
from pathlib import Path
from typing import Final

PORT_MIN: Final = 10_000
PORTS_TRIED: Final = 10_000


def free_port() -> int:
    """Return a port that no process listens on, below those that clients are given if possible.

    A port that a client is given could be taken while its server is being started again.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(PORT_MIN, lowest - PORTS_TRIED), lowest)
    for port in [*random.sample(below, len(below)), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("no port is free")
