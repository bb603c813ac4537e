"""A server as its users start it: a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("evald", deadline=None)
settings.load_profile("evald")


class ServerProcess(NamedTuple):
    """A running `evald serve`. grpc, http: its addresses, "127.0.0.1:PORT"."""

    grpc: str
    http: str
    process: "subprocess.Popen[str]"


# Nothing of the developer's own environment reaches the server under test.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")}


@pytest.fixture(scope="session")
def evald_command() -> str:
    """The installed `evald`."""
    return str(Path(sys.executable).with_name("evald"))


@pytest.fixture(scope="module")
def server_process(evald_command: str) -> Iterator[ServerProcess]:
    """A server on free ports of the loopback interface; it has to stop by itself on SIGTERM."""
    process = subprocess.Popen(
        [evald_command, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        ready = process.stdout.readline()
        addresses = re.findall(r"127\.0\.0\.1:\d+", ready)
        assert len(addresses) == 2, f"wanted one line with the gRPC and the HTTP address, got {ready!r}"
        yield ServerProcess(addresses[0], addresses[1], process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()
