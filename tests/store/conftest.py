"""Fixtures that run tests on each database."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from evald_server.store.database import FILE_NAME, MEMORY, Database

from .postgres import Postgres, programs

Place: TypeAlias = str | Path

MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql)"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    found = programs()
    if found is None:
        assert not os.environ.get("EVALD_REQUIRE_TOOLS"), MISSING
        pytest.skip(MISSING)
    with ExitStack() as stack:
        server = Postgres(found)
        stack.callback(server.close)
        server.start()
        yield server


@pytest.fixture(params=["file", "memory", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The URL of a new database."""
    return _place(request, tmp_path)


@pytest.fixture(params=["file", "postgresql"])
def lasting_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The URL of a new database that outlives its process."""
    return _place(request, tmp_path)


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.create()
    return MEMORY if request.param == "memory" else tmp_path / FILE_NAME


@pytest.fixture
async def open_database() -> AsyncIterator[Callable[[Place], Database]]:
    """Return a function that opens databases, which are closed after the test."""
    made: list[Database] = []

    def make(place: Place) -> Database:
        made.append(Database(place))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def database(place: Place, open_database: Callable[[Place], Database]) -> Database:
    """A new database, started."""
    new = open_database(place)
    await new.start()
    return new
