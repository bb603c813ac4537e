"""Scripts for tests, and functions that run them without a server."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evald.context import EvaluatorContext
from evald.evaluator import InvalidConfig
from evald.result import Result
from evald_server.config import Settings
from evald_server.scripts.evaluator import code_definition
from evald_server.scripts.runner import ScriptRunner

from ..evaluators.contexts import answered
from ..isolation import ISOLATION

BOOKED = answered("You fly to Lisbon, reference BK-12345.")

PYTHON = "#!/usr/bin/env python3\nimport json, os, sys, time, signal\n"
SHELL = "#!/bin/sh\n"
PASSES = """echo '{"pass": true, "reason": "fine"}'\n"""


class Folder:
    """A folder for scripts that all users may read: a server that runs as root runs them as nobody."""

    def __init__(self, path: Path) -> None:
        path.chmod(0o755)
        self.path = path

    def shell(self, text: str, name: str = "check.sh") -> str:
        """Write an executable for /bin/sh. Returns its path."""
        return self._write(name, SHELL + textwrap.dedent(text))

    def python(self, text: str, name: str = "check.py") -> str:
        """Write an executable for Python, which imports json, os, sys, time and signal. Returns its path."""
        return self._write(name, PYTHON + textwrap.dedent(text))

    def public(self, name: str) -> Path:
        """Create a file that scripts without isolation may write to."""
        path = self.path / name
        path.touch()
        path.chmod(0o666)
        return path

    def _write(self, name: str, text: str) -> str:
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)


async def judge(
    scripts: ScriptRunner | Settings, config: Mapping[str, Any], ctx: EvaluatorContext = BOOKED
) -> Result:
    """Return the evaluator's result with this config. The caller closes a runner that it passes."""
    running = ScriptRunner(scripts) if isinstance(scripts, Settings) else scripts
    outcome = code_definition(running).compile(config)(ctx)
    assert not isinstance(outcome, Result)
    result = await outcome
    if running is not scripts:
        await running.aclose()
    return result


async def judge_with(path: str, policy: Settings | None = None, **config: Any) -> Result:
    """Return the evaluator's result with this script, which is allowed."""
    policy = (policy or Settings(code_isolation=ISOLATION)).model_copy(update={"code_allow": [path]})
    return await judge(policy, {"command": [path], **config})


def refused(policy: Settings, config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return path and message of each violation in a config."""
    try:
        code_definition(ScriptRunner(policy)).compile(config)
    except InvalidConfig as problem:
        return [tuple(found) for found in problem.problems]
    raise AssertionError("not refused")


def living(marker: str) -> list[int]:
    """Return the ids of processes whose command line contains the marker."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):
                if marker.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return found


def words(result: Result) -> Sequence[str]:
    """Return error code and message."""
    assert result.error is not None, result
    return result.error.code, result.error.message
