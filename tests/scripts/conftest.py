"""Fixtures of scripts: a readable folder, and each isolation of this machine."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evald_server.config import Settings

from ..isolation import ISOLATION
from .programs import Folder


@pytest.fixture
def folder() -> Iterator[Folder]:
    """A folder that all users may read, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="evald-scripts-") as path:
        yield Folder(Path(path))


@pytest.fixture(params=["none", "bubblewrap"])
def policy(request: pytest.FixtureRequest) -> Settings:
    """A policy with this isolation. Skips the test if the machine lacks it."""
    if request.param not in ("none", ISOLATION):
        pytest.skip("bubblewrap does not work on this machine")
    return Settings(code_isolation=request.param)
