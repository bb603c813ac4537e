"""A Node.js program calls the server with nothing but the .proto files."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CLIENT = Path(__file__).with_name("node")


@pytest.mark.interop
def test_a_client_made_from_the_protos_alone_evaluates_a_turn(server_process: Any) -> None:
    assert shutil.which("npm"), "no npm: install Node.js 18 or newer (Debian: apt-get install nodejs npm)"
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=CLIENT, check=True)
    run = subprocess.run(
        ["node", "evaluate.js", server_process.grpc],
        cwd=CLIENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    messages = [json.loads(line) for line in run.stdout.splitlines()]
    results = [result for message in messages for result in message.get("results", [])]
    assert {result["name"]: result["verdict"] for result in results} == {
        "regex": "VERDICT_PASSED",
        "latency-budget": "VERDICT_PASSED",
        "response-length": "VERDICT_PASSED",
    }
    assert messages[-1]["summary"]["metrics"] == {"response-length": 38}
