"""The command line is quick to answer and helps those who err."""

import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from tests.attempts import attempts, processor_seconds_of_children

ROOT = Path(__file__).parents[2]


def test_help_comes_at_once_and_names_every_command(evald_command: str) -> None:
    # 0.3 s is what a person takes for at once.
    for attempt in attempts(0.3, clock=processor_seconds_of_children):
        with attempt:
            done = subprocess.run([evald_command, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0
    for command in (
        "serve",
        "health",
        "evaluate",
        "test",
        "history",
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
    [
        "serve",
        "health",
        "evaluate",
        "test",
        "history",
        "types",
        "validate",
        "calibrate",
        "remotes",
        "conformance",
        "demo",
    ],
)
def test_every_command_explains_itself(evald: Any, command: str) -> None:
    done = evald(command, "--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 5


def _run_without(package: str, command: str) -> "subprocess.CompletedProcess[str]":
    script = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"  # as if it were not installed
        "from evald_server.cli import main\n"
        f"sys.exit(main([{command!r}]))"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def _server_packages() -> list[str]:
    """The packages that the extra `server` adds to the SDK, by the names that Python imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    server, sdk = (
        {found.partition(">=")[0] for found in packages}
        for packages in (project["optional-dependencies"]["server"], project["dependencies"])
    )
    return sorted(
        name
        for name, distributions in packages_distributions().items()
        if (server - sdk) & set(distributions) and not name.startswith("_")
    )


@pytest.mark.parametrize("package", _server_packages())
def test_without_a_package_of_the_server_a_command_says_what_to_install(package: str) -> None:
    done = _run_without(package, "serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "evald serve needs the server: pip install 'evald[server]'\n"


def test_the_server_s_packages_are_needed_by_every_command_but_not_by_help() -> None:
    assert _run_without("rich", "demo").stderr.startswith("evald demo needs the server: ")
    assert _run_without("rich", "--version").returncode == 0
    assert _run_without("rich", "--help").returncode == 0


def test_a_command_within_another_program_leaves_its_garbage_collector_and_signals_alone() -> None:
    script = (
        "import gc, signal\n"
        "from evald_server.cli import main\n"
        "state = lambda: (gc.get_threshold(), gc.get_freeze_count(), signal.getsignal(signal.SIGTERM))\n"
        "before = state()\n"
        "assert main(['types', 'regex']) == 0\n"
        "assert state() == before, state()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "-e", "is-json"],
        ["test", "suite.yaml", "--connector"],
        ["test"],
        ["import"],
        ["connectors", "create"],
        ["connectors", "test", "--file"],
    ],
    ids=" ".join,
)
def test_a_command_that_is_ended_while_it_reads_says_so(
    evald_command: str, environment: Any, tmp_path: Path, arguments: list[str], ending: signal.Signals
) -> None:
    pipe = tmp_path / "input.json"
    os.mkfifo(pipe)
    with (
        subprocess.Popen(
            [evald_command, *arguments, str(pipe)],
            env=environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        pipe.open("w"),  # opens once the command does
    ):
        said = ("", "")
        # Python notices a signal that comes between its look for signals and the system call after that one only.
        for _ in range(6):
            process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                said = process.communicate(timeout=10)
                break
    assert (process.returncode, *said) == (130, "", "evald: interrupted\n")


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
        pytest.param(["serve", "--lissen", "x"], "did you mean '--listen'?", id="mistyped option"),
        pytest.param(["runs", "start", "--conector=x"], "did you mean '--connector'?", id="of an action"),
        pytest.param(["test", "s.yaml", "--html", "r.html"], "write --output FILE.html", id="of evaluate"),
        pytest.param(["keys", "list", "--nope"], "hint: evald keys list --help", id="unknown option"),
        pytest.param(
            ["--server", "x:1", "types"], "--server must come after the command", id="before a command"
        ),
        pytest.param(
            ["runs", "--server", "x:1", "list"], "--server must come after the action", id="an action"
        ),
        pytest.param(
            ["runs", "--server=x:1", "list"], "it must come after 'evald runs list'", id="of an action"
        ),
        pytest.param(["runs", "lst", "--json"], "did you mean 'list'?", id="mistyped action"),
        pytest.param(["version"], "commands are serve,", id="unlike any command"),
        pytest.param(["evaluate", "none.json", "-e", "is-json"], "No such file", id="no such file"),
        pytest.param(["validate"], "no evaluators are given", id="nothing to validate"),
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
