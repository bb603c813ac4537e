"""`evald conformance` says rule by rule what holds, to people, to programs and to CI."""

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.forks import Fork
from tests.ports import free_address

SCRIPT = Path(__file__).parents[1] / "conformance/plugin_process.py"

Start: TypeAlias = Callable[..., Fork]


@pytest.fixture(name="start")
def _start() -> Iterator[Start]:
    """Starts the scripted plugin."""
    started = []

    def start(*arguments: str) -> Fork:
        process = Fork(str(SCRIPT), *arguments, environment=os.environ, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(name="target")
def _target(start: Start) -> Callable[[str], str]:
    """Starts a plugin that listens; gives its address."""

    def target(breaks: str) -> str:
        process = start("listen", breaks)
        assert process.stdout
        return process.stdout.readline().strip()

    return target


def test_a_plugin_that_fulfils_the_contract_passes(evald: Any, target: Callable[[str], str]) -> None:
    done = evald("conformance", "--target", target(""))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert "EV20" in done.stdout
    assert "give one with --slow TYPE=JSON" in done.stdout


def test_a_broken_rule_fails_and_says_why(evald: Any, target: Callable[[str], str]) -> None:
    done = evald("conformance", "--target", target("EV13"))
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "NOT_FOUND no such service" in done.stdout


def test_what_only_should_hold_fails_nothing(evald: Any, target: Callable[[str], str]) -> None:
    done = evald("conformance", "--target", target("EV05"), "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert report["counts"]["warning"] == 1


def test_programs_get_json_and_ci_gets_junit(
    evald: Any, target: Callable[[str], str], tmp_path: Path
) -> None:
    junit = tmp_path / "report.xml"
    done = evald("conformance", "--target", target("EV81"), "--json", "--junit", str(junit))
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["passed"], report["mode"], report["plugin"]["name"]) == (False, "target", "acme")
    broken = [rule for rule in report["rules"] if rule["outcome"] == "failed"]
    assert [rule["rule"] for rule in broken] == ["EV81"]
    suite = ET.parse(junit).getroot()[0]
    assert suite.get("failures") == "1"
    assert suite.get("tests") == str(len(report["rules"]))
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert (failed.get("name") or "").startswith("EV81")


def test_a_plugin_that_dials_out_is_waited_for(evald: Any, start: Start) -> None:
    address = free_address()
    start(address)
    done = evald("conformance", "--attach", "--listen", address, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["mode"] == "connect"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param([], 2, "wanted either --target or --attach", id="no way in"),
        pytest.param(
            ["--target", "x:1", "--attach"], 2, "wanted either --target or --attach", id="both ways in"
        ),
        pytest.param(
            ["--target", "127.0.0.1:1", "--wait", "0.2"],
            4,
            "no plugin answers at 127.0.0.1:1 within 0.2s",
            id="nobody listens",
        ),
        pytest.param(
            ["--attach", "--listen", "127.0.0.1:0", "--wait", "0.2"], 4, "within 0.2s", id="nobody dials"
        ),
        pytest.param(["--target", "x:1", "--config", "acme"], 2, "wanted TYPE=JSON", id="no config"),
        pytest.param(["--target", "x:1", "--slow", "a={"], 2, "--slow a: ", id="no JSON"),
        pytest.param(
            ["--target", "x:1", "--config", 'a={"b": 1, "b": 2}'],
            2,
            "--config a: got a duplicate key 'b'",
            id="duplicate key in a config",
        ),
        pytest.param(["--target", "x:1", "--token-file", "k"], 2, "needs --attach", id="token to a target"),
        pytest.param(["--target", "x:1", "--listen", "y:1"], 2, "needs --attach", id="address to listen on"),
        pytest.param(["--target", "x:1", "--cert", "c"], 2, "both or neither", id="half a certificate"),
        pytest.param(["--target", "x:1", "--ca", "/nowhere"], 2, "/nowhere: No such file", id="no CA"),
        pytest.param(["--attach", "--ca", "c"], 2, "needs --cert and --key", id="no certificate to show"),
        pytest.param(
            ["--attach", "--cert", "/nowhere", "--key", "/nowhere"],
            2,
            "/nowhere: No such",
            id="no certificate",
        ),
        pytest.param(["--attach", "--token-file", "/nowhere"], 2, "/nowhere: No such file", id="no token"),
    ],
)
def test_other_endings_have_their_own_exit_code(
    evald: Any, arguments: list[str], code: int, says: str
) -> None:
    done = evald("conformance", *arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plugin_without_the_token_is_not_taken(evald: Any, start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("canary-token")
    address = free_address()
    start(address)
    done = evald("conformance", "--attach", "--listen", address, "--token-file", str(token), "--wait", "3")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "came without the token" in done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_a_config_for_a_type_that_is_not_offered_is_wrong_usage(
    evald: Any, target: Callable[[str], str]
) -> None:
    done = evald("conformance", "--target", target(""), "--config", "acme.other={}")
    assert done.returncode == 2
    assert "acme.check, acme.count" in done.stderr


def test_an_address_that_is_taken_is_wrong_usage(evald: Any, target: Callable[[str], str]) -> None:
    done = evald("conformance", "--attach", "--listen", target(""))
    assert done.returncode == 2
    assert "another program may be using it" in done.stderr
