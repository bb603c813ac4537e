"""The example plugins in other languages, and their helpers, pass evald's own conformance kit."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..ports import free_address
from .conftest import Certificates
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
        printed, complaints = checking.communicate(timeout=240)
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


# What needs a slow evaluator; what needs a config that can be wrong, or TLS.
SLOW, CONFIG_OR_TLS = ("EV40", "EV41", "EV42"), ("EV30", "EV70", "EV71")

# The examples over TLS, with certificates and a token; the others in plaintext.
WAYS = pytest.mark.parametrize("waiting", [False, True], ids=["example-tls", "waiting"])


@WAYS
def test_a_listening_plugin_keeps_every_rule(
    language: Language, evald_command: str, waiting: bool, certificates: Certificates
) -> None:
    environment, tls = (
        ({}, []) if waiting else (certificates.listening, certificate_options(certificates, "client"))
    )
    with started(language, "--listen", "127.0.0.1:0", waiting=waiting, environment=environment) as plugin:
        checking = kit(evald_command, "--target", plugin.listening(), *tls, *options(language, waiting))
        require_all(findings(checking), CONFIG_OR_TLS if waiting else SLOW)


@WAYS
def test_a_plugin_that_dials_out_keeps_every_rule(
    language: Language,
    evald_command: str,
    waiting: bool,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    address = free_address()
    environment: dict[str, str] = {}
    tls: list[str] = []
    if not waiting:
        token = tmp_path / "token"
        token.write_text("a-token\n")
        environment = {**certificates.dialling, "EVALD_TOKEN_FILE": str(token)}
        tls = [*certificate_options(certificates, "server"), "--token-file", str(token)]
    # The plugin comes first: it has to wait for its server anyway.
    with started(language, "--connect", address, waiting=waiting, environment=environment):
        checking = kit(evald_command, "--connect", "--listen", address, *tls, *options(language, waiting))
        require_all(findings(checking), CONFIG_OR_TLS if waiting else SLOW)


def certificate_options(certificates: Certificates, name: str) -> list[str]:
    """What the kit has to be told to show a certificate, and to require one of the plugin."""
    files = {"--ca": "ca.pem", "--cert": f"{name}.pem", "--key": f"{name}.key"}
    return [word for option, file in files.items() for word in (option, certificates.file(file))]
