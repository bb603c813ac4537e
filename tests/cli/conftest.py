"""Fixtures that run the command line as a process."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from .. import forks
from ..processes import EVALD, clean_environment

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Return a function that makes the environment of a command."""
    return clean_environment


@pytest.fixture(scope="session")
def evald() -> Run:
    """Return a function that runs `evald` with arguments, for at most 120 s."""

    def run(*arguments: str, stdin: str = "", **extra: str) -> "subprocess.CompletedProcess[str]":
        return forks.run(EVALD, *arguments, stdin=stdin, environment=clean_environment(extra))

    return run


@pytest.fixture(scope="session")
def records(evald: Run) -> Callable[..., tuple[list[dict[str, Any]], dict[str, Any], int]]:
    """Return a function that runs `evald evaluate --json` and returns conversations, summary and exit code."""

    def run(*arguments: str, **more: str) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        done = evald("evaluate", *arguments, "--json", **more)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert found, done.stderr
        return found[:-1], found[-1], done.returncode

    return run


def conversation(answer: str, **more: Any) -> dict[str, Any]:
    """Return a conversation of one turn."""
    return {
        "messages": [{"role": "user", "content": "Where to?"}, {"role": "assistant", "content": answer}]
    } | more


@pytest.fixture(scope="session")
def talk() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a conversation of one turn."""
    return conversation


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes JSON Lines and returns the path."""

    def write(*conversations: Any, name: str = "conversations.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(found) + "\n" for found in conversations), encoding="utf-8")
        return str(path)

    return write
