"""Node.js programs call the server with nothing but the .proto files."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CLIENTS = Path(__file__).with_name("node")

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The packages that the programs need."""
    assert shutil.which("npm"), "no npm: install Node.js 18 or newer (Debian: apt-get install nodejs npm)"
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=CLIENTS, check=True)


def node(program: str, server_process: Any) -> str:
    """What a program prints that has to end well."""
    run = subprocess.run(
        ["node", program, server_process.grpc],
        cwd=CLIENTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_client_made_from_the_protos_alone_evaluates_a_turn(server_process: Any) -> None:
    messages = [json.loads(line) for line in node("evaluate.js", server_process).splitlines()]
    results = [result for message in messages for result in message.get("results", [])]
    assert {result["name"]: result["verdict"] for result in results} == {
        "regex": "VERDICT_PASSED",
        "latency-budget": "VERDICT_PASSED",
        "response-length": "VERDICT_PASSED",
    }
    assert messages[-1]["summary"]["metrics"] == {"response-length": 38}


def test_a_client_made_from_the_protos_alone_keeps_and_runs_scenarios(server_process: Any) -> None:
    node("runs.js", server_process)
