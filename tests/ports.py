"""Addresses for servers that start later, or restart at the same address."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_OF_THE_KERNEL = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768


def free_address() -> str:
    """Return a free address, "127.0.0.1:PORT".

    Outside the range of ports that the kernel gives to connections and for
    port 0: one in it may be another's by the time of use, and who dials it
    again and again may end up connected to itself.
    """
    while True:
        port = random.randrange(_LOWEST_OF_THE_KERNEL // 2, _LOWEST_OF_THE_KERNEL)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
