"""The command line is quick to answer and helps those who err."""

import subprocess
import sys
import time
from typing import Any

import pytest


@pytest.mark.alone
def test_help_comes_at_once_and_names_every_command(evald: Any) -> None:
    # 0.3 s is what a person takes for at once; the best of ten, because other work shares the machine.
    for _ in range(10):
        began = time.perf_counter()
        done = evald("--help")
        took = time.perf_counter() - began
        assert done.returncode == 0
        if took < 0.3:
            break
    assert took < 0.3
    for command in (
        "serve",
        "evaluate",
        "types",
        "validate",
        "calibrate",
        "remotes",
        "conformance",
        "demo",
        "examples:",
        "exit codes:",
    ):
        assert command in done.stdout


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from evald_server.cli import main\n"
        "try: main(['evaluate', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'google', 'pydantic', 'rich', 'evald', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    ["serve", "evaluate", "types", "validate", "calibrate", "remotes", "conformance", "demo"],
)
def test_every_command_explains_itself(evald: Any, command: str) -> None:
    done = evald(command, "--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 5


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evald_server", "--version"], capture_output=True, text=True, check=True
    )
    from importlib.metadata import version

    assert done.stdout == f"evald {version('evald')}\n"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        pytest.param(["evalute"], "did you mean 'evaluate'?", id="mistyped command"),
        pytest.param(["evaluate"], "FILE", id="no file"),
        pytest.param(["evaluate", "x.json", "--timeout", "soon"], "seconds above 0", id="no number"),
        pytest.param(["serve", "--lissen", "x"], "--lissen", id="unknown option"),
        pytest.param(["evaluate", "none.json", "-e", "is-json"], "No such file", id="no such file"),
        pytest.param(["validate"], "no evaluators to check", id="nothing to validate"),
    ],
)
def test_wrong_usage_ends_with_2_and_advice(evald: Any, arguments: list[str], advice: str) -> None:
    done = evald(*arguments)
    assert done.returncode == 2
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_without_a_command_it_shows_the_help(evald: Any) -> None:
    done = evald()
    assert done.returncode == 0
    assert done.stdout.startswith("usage: evald")
