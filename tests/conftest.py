"""A server as its users start it: a process of its own."""

import asyncio
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from evald_server.memory import collect_rarely

from .chromium import axe, browser  # noqa: F401 - fixtures of pages
from .loop import LOOP

# How long an example takes is the machine's business.
settings.register_profile("evald", deadline=None)
settings.load_profile("evald")

# Ten thousand collected tests are no garbage: at Python's thresholds a third of the time to collect them, and a
# tenth of what they take, goes to looking for some among them.
collect_rarely()


def pytest_collection_finish() -> None:
    """Keep what is loaded out of the collections that follow."""
    gc.collect()
    gc.freeze()


class ServerProcess(NamedTuple):
    """A running `evald serve`. grpc, http, web: its addresses, "127.0.0.1:PORT"."""

    grpc: str
    http: str
    process: "subprocess.Popen[str]"
    web: str


# Nothing of the developer's own environment reaches the server under test.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")} | {
    "EVALD_WEB": ""  # its default port is one, and servers under test are many
}


# A shell's job in the background ignores it, and so would every server under test: Ctrl-C would end none of them.
signal.signal(signal.SIGINT, signal.default_int_handler)


ANY_PORT = "127.0.0.1:0"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What async tests run on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keep one event loop for all tests: with two in a process, grpc.aio wakes both for every event."""
    LOOP.append(asyncio.get_running_loop())
    yield
    LOOP.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Bound async tests: one that waits for ever fails. None needs more than a tenth of it on a quiet machine."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):

        @wraps(test)
        async def bounded(*args: Any, **kwargs: Any) -> None:
            async with asyncio.timeout(120):
                await test(*args, **kwargs)

        pyfuncitem.obj = bounded


@pytest.fixture(scope="session")
def evald_command() -> str:
    """The installed `evald`."""
    return str(Path(sys.executable).with_name("evald"))


@pytest.fixture(scope="module")
def server_process(evald_command: str) -> Iterator[ServerProcess]:
    """A server on free ports of the loopback interface; it has to stop by itself on SIGTERM."""
    process = subprocess.Popen(
        [evald_command, "serve", *("--listen", ANY_PORT), *("--http", ANY_PORT), *("--web", ANY_PORT)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        ready = process.stdout.readline() + process.stdout.readline()
        addresses = re.findall(r"127\.0\.0\.1:\d+", ready)
        assert len(addresses) == 3, (
            f"wanted the addresses of gRPC and HTTP, and of the console, got {ready!r}"
        )
        yield ServerProcess(addresses[0], addresses[1], process, addresses[2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
