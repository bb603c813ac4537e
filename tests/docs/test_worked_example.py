"""The evaluator of CONTRIBUTING.md works when it is added as the page says."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .. import forks
from ..processes import EVALD, clean_environment

ROOT = Path(__file__).parents[2]
TABLE = "server/evald_server/evaluators/__init__.py"


def _page() -> ModuleType:
    found = importlib.util.spec_from_file_location("page", Path(__file__).with_name("page.py"))
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("## Adding an evaluator")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the server's package with the file and the line of the page."""
    assert f"`{TABLE}`" in _section()
    file, line = [block for block in _page().blocks(_section()) if block.language == "python"]
    tmp_path = tmp_path_factory.mktemp("worked")
    shutil.copytree(ROOT / "server", tmp_path / "server", ignore=shutil.ignore_patterns("*.egg-info"))
    assert not (tmp_path / file.file).exists()
    (tmp_path / file.file).write_text(file.text, encoding="utf-8")
    table = tmp_path / TABLE
    text, count = re.subn(r"(?m)^(?=from \.numeric )", line.text, table.read_text(encoding="utf-8"))
    assert (count, line.text.count("\n")) == (1, 1)
    table.write_text(text, encoding="utf-8")
    return tmp_path / "server"


def _turn(answer: str | None) -> str:
    return json.dumps([{"role": "assistant" if answer else "user", "content": answer or "Where?"}])


def test_the_worked_example_judges_turns_and_is_in_the_catalogue(source: Path) -> None:
    server = forks.ForkServer(clean_environment({"PYTHONPATH": str(source)}))
    try:
        _judges_turns_and_is_in_the_catalogue(server)
    finally:
        server.close()


def _judges_turns_and_is_in_the_catalogue(server: forks.ForkServer) -> None:
    def evald(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        environment = clean_environment({"COLUMNS": "120"})
        return forks.run(EVALD, *arguments, stdin=stdin, environment=environment, server=server)

    passed = evald("evaluate", "-", "-e", "min-links", stdin=_turn("See https://example.org"))
    assert "1 links, at least 1 wanted" in passed.stdout, passed.stderr
    assert passed.returncode == 0
    for answer, reason in (("See there", "0 links, at least 2 wanted"), (None, "No assistant message found")):
        failed = evald("evaluate", "-", "-e", "min-links:count=2", stdin=_turn(answer))
        assert reason in failed.stdout, failed.stderr
        assert failed.returncode == 1
    shown = evald("types", "min-links").stdout
    assert "Fewest links that pass." in shown
    for line in re.findall(
        r"(?m)^(?:│|The answer).*$", _section().partition("```console")[2].partition("```")[0]
    ):
        assert line in passed.stdout + shown
    refused = evald("evaluate", "-", "-e", "min-links:count=0", stdin=_turn("hello"))
    assert refused.returncode == 2
    assert "count" in refused.stderr


def test_the_worked_example_passes_the_checks_of_the_project(source: Path) -> None:
    file = source / "evald_server/evaluators/links.py"
    for check in (("ruff", "check"), ("ruff", "format", "--check")):
        run = subprocess.run(
            [sys.executable, "-m", *check, "--config", str(ROOT / "pyproject.toml"), str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
