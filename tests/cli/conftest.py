"""The command line as its users run it: a process, its output, its exit code."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ..processes import clean_environment

Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Makes an environment for a command."""
    return clean_environment


@contextmanager
def forking(folder: Path, **own: str) -> Iterator[Run]:
    """Runs `evald` with arguments, in forks of a process that has imported it, see fork_server.py; at most 120 s.

    own: of the environment of that process and of all commands. folder: for the files of their standard streams.
    """
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
        env=clean_environment(own),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    numbers = count()

    def run(*arguments: str, stdin: str = "", **extra: str) -> "subprocess.CompletedProcess[str]":
        number = next(numbers)
        streams = [folder / f"{number}.{name}" for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin, encoding="utf-8")
        request = {
            "arguments": arguments,
            "environment": clean_environment(own | extra),
            "directory": str(Path.cwd()),
            "streams": [str(path) for path in streams],
        }
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        output, errors = (path.read_text(encoding="utf-8") for path in streams[1:])
        return subprocess.CompletedProcess(["evald", *arguments], code, output, errors)

    with server:  # closes its input, which ends it
        yield run


@pytest.fixture(scope="session")
def evald(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs `evald` with arguments; at most 120 s."""
    with forking(tmp_path_factory.mktemp("evald")) as run:
        yield run


@pytest.fixture(scope="session")
def records(evald: Run) -> Callable[..., tuple[list[dict[str, Any]], dict[str, Any], int]]:
    """Runs `evald evaluate --json`: the conversations, the summary, the exit code."""

    def run(*arguments: str, **more: str) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        done = evald("evaluate", *arguments, "--json", **more)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert found, done.stderr
        return found[:-1], found[-1], done.returncode

    return run


def conversation(answer: str, **more: Any) -> dict[str, Any]:
    """A conversation of one turn."""
    return {
        "messages": [{"role": "user", "content": "Where to?"}, {"role": "assistant", "content": answer}]
    } | more


@pytest.fixture(scope="session")
def talk() -> Callable[..., dict[str, Any]]:
    """Makes a conversation of one turn."""
    return conversation


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    """Writes JSON Lines and gives the path."""

    def write(*conversations: Any, name: str = "conversations.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(found) + "\n" for found in conversations), encoding="utf-8")
        return str(path)

    return write
