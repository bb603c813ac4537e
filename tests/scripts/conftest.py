"""Fixtures of scripts: a readable folder, and each isolation of this machine."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evald_server.config import Settings
from evald_server.scripts import isolation

from .programs import Folder


@pytest.fixture
def folder() -> Iterator[Folder]:
    """A folder that all users may read, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="evald-scripts-") as path:
        yield Folder(Path(path))


@pytest.fixture(params=["none", "landlock", "bubblewrap"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A policy with this isolation. Skips the test if the machine lacks it."""
    wanted: str = request.param
    if wanted == "none":
        return Settings(code_isolation="off")
    if wanted == "landlock":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    found, _ = isolation.find(Settings(code_isolation="require"))
    if found != wanted:
        pytest.skip(f"this machine has no {wanted}")
    return Settings(code_isolation="require")
