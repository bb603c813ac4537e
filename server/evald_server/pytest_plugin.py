"""pytest fixtures, for `pytest_plugins = ["evald_server.pytest_plugin"]`."""

from collections.abc import Iterator

import pytest

from evald import Client

from .testing import LocalServer, server


@pytest.fixture(scope="session")
def evald_server() -> Iterator[LocalServer]:
    """Run a server with the built-in evaluators, shared by all tests of the session."""
    with server() as running:
        yield running


@pytest.fixture
def evald_client(evald_server: LocalServer) -> Iterator[Client]:
    """Connect a client to `evald_server`."""
    with evald_server.client() as client:
        yield client
