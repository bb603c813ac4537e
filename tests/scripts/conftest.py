"""A folder that scripts can be read in, and the isolations of this machine, one after the other."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evald_server.scripts import isolation
from evald_server.scripts.policy import ScriptPolicy

from .programs import Folder


@pytest.fixture
def folder() -> Iterator[Folder]:
    """Not tmp_path, whose parents are open to their owner alone."""
    with tempfile.TemporaryDirectory(prefix="evald-scripts-") as path:
        yield Folder(Path(path))


@pytest.fixture(params=["none", "landlock", "bubblewrap"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ScriptPolicy:
    """A policy under which scripts run in this isolation; skips what the machine does not have."""
    wanted: str = request.param
    if wanted == "none":
        return ScriptPolicy(isolation="off")
    if wanted == "landlock":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    found, _ = isolation.find(ScriptPolicy(isolation="require"))
    if found != wanted:
        pytest.skip(f"this machine has no {wanted}")
    return ScriptPolicy(isolation="require")
