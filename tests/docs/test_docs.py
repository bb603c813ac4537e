"""Every command and every block of code in the documents works."""

import ast
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.thorough import first_of

from ..auth.methods import EVERY_METHOD
from ..forks import FORKS

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("page.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]
# What only contributors and operators run: benchmarks take ten minutes, rules need Prometheus.
CHECKED_PAGES = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "protos/README.md")),
    *(
        ROOT / name
        for name in ("benchmarks/README.md", "deploy/envoy/README.md", "deploy/prometheus/README.md")
    ),
]

# What a block may be; `text` is for what cannot be run here.
RUN = {"bash", "console", "python"}
LANGUAGES = RUN | {"dockerfile", "js", "json", "promql", "proto", "text", "toml", "yaml"}

# Setting up and serving is what surrounds the page under test: here these commands only have to exist.
STAND_INS = {
    "make": f'exec {shutil.which("make")} --dry-run --directory={ROOT} "$@" >/dev/null',
    "pip": '[ "$1" = install ]',
    # A server is ended by a signal to the process that the page has started.
    "evald": f'[ "$1 $2" = "serve --config" ] && exec {Path(sys.executable).with_name("evald")} "$@"\n'
    f'exec {sys.executable} -S -E {Path(__file__).with_name("evald_in_fork.py")} "$@"',
}


def _load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("page", RUNNER)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page_runner = _load_runner()


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _workplace(tmp_path: Path) -> Path:
    """A directory with the files of the repository in it, to which blocks may write."""
    place = tmp_path / "checkout"
    place.mkdir()
    for name in ("client", "docs", "examples", "protos", "server", "tests", "benchmarks"):
        place.joinpath(name).symlink_to(ROOT / name)
    return place


def _commands(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in STAND_INS.items():
        command = folder / name
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
    return folder


@pytest.mark.parametrize("path", first_of(PAGES, 4), ids=_ids)
def test_the_blocks_of_a_page_run(
    path: Path, server_process: Any, evald_command: str, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("EVALD_", "MAKE"))}
    environment |= {
        "PATH": f"{_commands(tmp_path)}:{Path(sys.executable).parent}:{environment['PATH']}",
        "COLUMNS": "120",  # what is printed wraps at the width of whoever runs the tests
        # Of plugins that are installed here, but not where a reader of the page is; to import them takes long.
        "PYTEST_ADDOPTS": "-pno:schemathesis -pno:hypothesispytest -pno:xdist -pno:anyio",
        "EVALD_SERVER": server_process.grpc,
        "EVALD_TEST_EVALD": evald_command,
        "EVALD_TEST_FORKS": str(FORKS[0].address),
        "EVALD_TEST_GRPC": server_process.grpc,
        "EVALD_TEST_HTTP": server_process.http,
        "EVALD_TEST_WEB": server_process.web,
    }
    log = tmp_path / "page.log"
    with log.open("wb") as output:
        page = subprocess.Popen(
            [sys.executable, "-W", "error", str(RUNNER), str(path)],
            cwd=_workplace(tmp_path),
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = page.wait(timeout=300)
        finally:
            # What a page has started in the background, and would have stopped in its last block.
            with suppress(ProcessLookupError):
                os.killpg(page.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-8000:]


def test_the_first_command_prints_what_the_front_page_shows() -> None:
    """Every line of it, headings and frames too: what is left out there would look like a fault to its reader."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(block for block in page_runner.blocks(readme) if block.language == "console")
    command, _, shown = block.text.removeprefix("$ ").partition("\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    run = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert run.stdout == shown


@pytest.mark.parametrize("path", CHECKED_PAGES, ids=_ids)
def test_every_block_says_what_it_is_and_is_valid(path: Path) -> None:
    for block in page_runner.blocks(path.read_text(encoding="utf-8")):
        place = f"{path.name}:{block.line}"
        assert block.language in LANGUAGES, f"{place}: {block.language!r}"
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            ast.parse(block.text, place)


def test_the_first_screen_installs_and_shows_a_verdict() -> None:
    """One sentence, how to install, one command that shows a verdict, one block of code."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # 45 lines: what a laptop shows of a repository's front page before one scrolls.
    first = "\n".join(readme.splitlines()[:45])
    for wanted in ("make demo", "make test", "pip install", "PASSED", "```python"):
        assert wanted in first, wanted


def _rows(markdown: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its header."""
    section = markdown.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_call_errors_is_the_server_s() -> None:
    from evald_server.rpc.errors import REASONS

    rows = _rows((ROOT / "protos/README.md").read_text(encoding="utf-8"), "When a call fails")
    written = {row[2].strip("`"): (row[1].strip("`"), "RetryInfo" in row[3]) for row in rows}
    assert len(written) == len(rows)
    assert written == {name: (reason.code.name, reason.retry is not None) for name, reason in REASONS.items()}


def test_every_reason_that_the_server_raises_is_in_the_table() -> None:
    from evald_server.rpc.errors import REASONS

    makers = {"CallError", "AccessDenied", "Refusal", "invalid", "refusal"}
    raised = {
        argument.value
        for file in (ROOT / "server/evald_server").rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in makers
        for argument in call.args
        if isinstance(argument, ast.Constant) and re.fullmatch("[A-Z]+(_[A-Z]+)*", str(argument.value))
    }
    assert len(raised) > 30
    assert raised <= REASONS.keys()


def test_the_table_of_evaluator_errors_is_the_sdk_s() -> None:
    from evald.errorcodes import CODES

    rows = _rows(
        (ROOT / "protos/README.md").read_text(encoding="utf-8"), "When one evaluator gives no verdict"
    )
    assert [tuple(cell.strip("`") for cell in row) for row in rows] == [
        (code, info.category.name, "yes" if info.retryable else "no", info.meaning)
        for code, info in CODES.items()
    ]


def test_the_docs_list_every_evaluator_with_its_aliases(evald_command: str) -> None:
    run = subprocess.run([evald_command, "types", "--json"], capture_output=True, text=True, check=True)
    known = {
        entry["type"]: (entry["kind"].removeprefix("EVALUATOR_KIND_").lower(), set(entry.get("aliases", [])))
        for entry in json.loads(run.stdout)["evaluatorTypes"]
    }
    rows = _rows((ROOT / "docs/evaluators.md").read_text(encoding="utf-8"), "All of them")
    written = {row[0].strip("`"): (row[1], set(re.findall(r"`([^`]+)`", row[2]))) for row in rows}
    assert written == known


def test_the_page_of_settings_lists_every_setting() -> None:
    from evald_server.config import Settings

    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.*) \|$", text, re.MULTILINE)
    written = {name: (default.strip("`"), meaning) for name, default, meaning in rows}
    assert len(written) == len(rows)
    assert written == {
        name: (_shown(field.default), field.description) for name, field in Settings.model_fields.items()
    }


def _shown(default: Any) -> str:
    """Nothing where the default is none, or depends on the machine: then the meaning says it."""
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if isinstance(default, str | int | float | Path) else ""


def test_the_contract_lists_every_method() -> None:
    from evald.agent.v1 import agent_service_pb2
    from evald.plugin.v1 import evaluator_plugin_service_pb2

    rows = _rows((ROOT / "protos/README.md").read_text(encoding="utf-8"), "Services")
    written = {f"{row[0].strip('`')}/{method}" for row in rows for method in re.findall(r"`(\w+)`", row[1])}
    others = {
        f"{service.name}/{method.name}"
        for file in (agent_service_pb2, evaluator_plugin_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert written == others | {
        method.rpartition(".")[2] for method in EVERY_METHOD if method.startswith("/evald.")
    }


def _help(*command: str) -> str:
    """What `evald COMMAND --help` prints."""
    from evald_server.cli.parser import build_parser

    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        build_parser().parse_args([*command, "--help"])
    return printed.getvalue()


def test_the_docs_mention_every_command_and_option() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    listed = _help().partition("\n  COMMAND\n")[2].partition("\n\n")[0]
    commands = re.findall(r"^    ([a-z]+)(?: |$)", listed, re.MULTILINE)
    rows = _rows((ROOT / "docs/cli.md").read_text(encoding="utf-8"), "Commands")
    assert [row[0].strip("`").removeprefix("evald ") for row in rows] == commands
    helps = [_help()]
    for command in commands:
        helps.append(_help(command))
        _, found, actions = helps[-1].partition("\n  ACTION\n")
        names = re.findall(r"^    ([a-z]+) ", actions.partition("\n\n")[0], re.MULTILINE)
        assert bool(names) == bool(found)
        helps += [_help(command, name) for name in names]
    options = {
        option for shown in helps for option in re.findall(r"^  (?:-\w.*, )?(--[a-z-]+)", shown, re.MULTILINE)
    }
    assert len(options) > 50
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert sorted(options - mentioned - {"--help"}) == []
