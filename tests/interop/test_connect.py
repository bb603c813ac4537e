"""Clients of Connect's protocol call the web port: `buf curl`, and connect-web, which pages in browsers use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .test_buf_curl import BUF, REQUEST

CLIENT = Path(__file__).with_name("connect")
ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
TOOLS = ROOT / "build/connect"
CONFORMANCE = "v1.0.7"

pytestmark = pytest.mark.interop


def _run(*command: str, cwd: Path | None = None) -> str:
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("method", "request_of"), [("EvaluateUnary", {"request": REQUEST}), ("Evaluate", REQUEST)]
)
def test_buf_curl_calls_unary_and_streaming_methods(
    server_process: Any, method: str, request_of: Any
) -> None:
    url = f"http://{server_process.web}/evald.v1.EvaluationService/{method}"
    said = _run(
        BUF, "curl", "--protocol", "connect", "--schema", str(PROTOS), "--data", json.dumps(request_of), url
    )
    assert json.loads(said)["summary"]["verdict"] == "VERDICT_PASSED"


def test_buf_curl_shows_the_error_of_a_refused_call(server_process: Any) -> None:
    url = f"http://{server_process.web}/evald.v1.CatalogService/GetEvaluatorType"
    command = [
        BUF,
        "curl",
        "--protocol",
        "connect",
        "--schema",
        str(PROTOS),
        "--data",
        '{"type": "regx"}',
        url,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode != 0
    error = json.loads(run.stderr)
    assert error["code"] == "not_found"
    assert error["details"][0]["debug"]["reason"] == "UNKNOWN_TYPE"


@pytest.mark.parametrize("form", ["json", "binary"])
def test_connect_web_calls_unary_and_streaming_methods(
    server_process: Any, tmp_path: Path, form: str
) -> None:
    assert shutil.which("npm"), "no npm: install Node.js 18 or newer (Debian: apt-get install nodejs npm)"
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=CLIENT)
    descriptors = tmp_path / "evald.binpb"
    _run(BUF, "build", str(PROTOS), "--as-file-descriptor-set", "-o", str(descriptors))
    url = f"http://{server_process.web}"
    lines = _run("node", "evaluate.js", url, str(descriptors), form, cwd=CLIENT).splitlines()
    unary, *messages, refused, refused_stream = map(json.loads, lines)
    assert unary["summary"]["verdict"] == "VERDICT_PASSED"
    assert messages[-1]["summary"]["verdict"] == "VERDICT_PASSED"
    assert refused == refused_stream
    assert refused["code"] == "NotFound"
    assert "did you mean" in refused["message"]
    assert "google.rpc.ErrorInfo" in refused["details"]


# Their error has google.rpc.ErrorInfo, which the suite does not expect of them.
WITH_DETAILS = (
    "Server Message Size/**/request-exceeds-server-limit",
    "Connect Unexpected Requests/**/unexpected-uri",
)


def test_the_bridge_passes_the_conformance_suite_of_connect(tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    assert go, "no go: install Go 1.24 or newer"
    module = "connectrpc.com/conformance"
    environment = os.environ | {"GOBIN": str(TOOLS)}
    command = [go, "install", f"{module}/cmd/connectconformance@{CONFORMANCE}"]
    subprocess.run(command, env=environment, check=True, timeout=3000)
    cached = json.loads(_run(go, "mod", "download", "-json", f"{module}@{CONFORMANCE}"))["Dir"]
    descriptors = tmp_path / "conformance.binpb"
    _run(BUF, "build", f"{cached}/proto", "--as-file-descriptor-set", "-o", str(descriptors))
    program = Path(__file__).with_name("connect_server.py")
    run = subprocess.run(
        [
            str(TOOLS / "connectconformance"),
            *("--mode", "server", "--conf", str(program.with_name("connect_conformance.yaml"))),
            *(argument for name in WITH_DETAILS for argument in ("--known-failing", name)),
            *("--", sys.executable, str(program), str(descriptors)),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout
