"""Fixtures and settings of all tests."""

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import AsyncIterator, Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import settings

from evald_server.memory import collect_rarely

from .chromium import axe, browser  # noqa: F401 - fixtures of pages
from .forks import FORKS, ForkServer
from .loop import LOOP
from .processes import ANY_PORT, EVALD, ServerProcess, clean_environment, server_process

# How long an example takes is the machine's business.
settings.register_profile("evald", deadline=None)
settings.load_profile("evald")

# Ten thousand collected tests are no garbage: at Python's thresholds a third of the time to collect them, and a
# tenth of what they take, goes to looking for some among them.
collect_rarely()


# The address of the fork server that the workers of a run share, in their environment.
_SHARED_FORKS = "FORK_SERVER_OF_TESTS"


def pytest_configure(config: pytest.Config) -> None:
    """Start one fork server for all workers of a run: one for each would import evald once more."""
    if config.getoption("numprocesses", None) and not config.getoption("collectonly"):
        shared = ForkServer(clean_environment())
        shared.start()
        os.environ[_SHARED_FORKS] = str(shared.address)
        config.add_cleanup(shared.close)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection."""
    gc.collect()
    gc.freeze()


# A shell's job in the background ignores it, and so would every server under test: Ctrl-C would end none of them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The backend of async tests."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Share one event loop among all tests: with two in a process, grpc.aio wakes both for every event."""
    LOOP.append(asyncio.get_running_loop())
    yield
    LOOP.clear()


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    """Share one process, whose forks are the servers and commands under test."""
    FORKS.append(ForkServer(clean_environment(), os.environ.get(_SHARED_FORKS, "")))
    yield
    FORKS.pop().close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Fail async tests after 120 s. On a quiet machine none needs a tenth of that."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):

        @wraps(test)
        async def bounded(*args: Any, **kwargs: Any) -> None:
            async with asyncio.timeout(120):
                await test(*args, **kwargs)

        pyfuncitem.obj = bounded


@pytest.fixture(scope="session")
def evald_command() -> str:
    """The path of the installed `evald`."""
    return EVALD


@pytest.fixture(name="server_process", scope="module")
def _server_process() -> Iterator[ServerProcess]:
    """A server process on free loopback ports, which must stop on SIGTERM."""
    with server_process("--web", ANY_PORT, stderr=None) as server:
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
