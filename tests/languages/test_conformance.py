"""The example plugins in other languages, and their helpers, pass evald's own conformance kit."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from .examples import ENVIRONMENT, Language, started

pytestmark = pytest.mark.interop


def options(language: Language, waiting: bool) -> list[str]:
    """What the kit has to be told of a plugin: configs that fit, and one with which it takes long."""
    if waiting:
        return ["--config", 'test.wait={"seconds": 0}', "--slow", 'test.wait={"seconds": 30}']
    return ["--config", f"{language.assertion}={json.dumps(language.config)}"]


def kit(command: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [command, "conformance", "--json", *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def findings(checking: "subprocess.Popen[str]") -> dict[str, list[str]]:
    """What the kit has found: rules and reasons by outcome."""
    try:
        printed, complaints = checking.communicate(timeout=90)
    finally:
        checking.kill()
        checking.communicate()
    assert checking.returncode in {0, 1}, complaints
    found: dict[str, list[str]] = {}
    for rule in json.loads(printed)["rules"]:
        found.setdefault(rule["outcome"], []).append(f"{rule['rule']} {rule['text']}")
    return found


def require_all(found: dict[str, list[str]], untried: Sequence[str]) -> None:
    """Every rule holds, those that only should hold as well; `untried` are those that may be left out."""
    assert "failed" not in found, found["failed"]
    assert "warning" not in found, found["warning"]
    assert len(found["passed"]) > 30
    assert {text.split()[0] for text in found.get("not_shown", [])} <= set(untried), found["not_shown"]


# What needs a slow evaluator; what needs a config that can be wrong.
SLOW, CONFIG = ("EV40", "EV41", "EV42"), ("EV30",)


@pytest.mark.parametrize("waiting", [False, True], ids=["example", "waiting"])
def test_a_listening_plugin_keeps_every_rule(language: Language, evald_command: str, waiting: bool) -> None:
    with started(language, "--listen", "127.0.0.1:0", waiting=waiting) as plugin:
        checking = kit(evald_command, "--target", plugin.listening(), *options(language, waiting))
        require_all(findings(checking), CONFIG if waiting else SLOW)


@pytest.mark.parametrize("waiting", [False, True], ids=["example", "waiting"])
def test_a_plugin_that_dials_out_keeps_every_rule(
    language: Language, evald_command: str, waiting: bool, free_port: int
) -> None:
    address = f"127.0.0.1:{free_port}"
    # The plugin comes first: it has to wait for its server anyway.
    with started(language, "--connect", address, waiting=waiting):
        checking = kit(evald_command, "--connect", "--listen", address, *options(language, waiting))
        require_all(findings(checking), CONFIG if waiting else SLOW)


@pytest.fixture
def free_port() -> Any:
    """A port on which nothing listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
