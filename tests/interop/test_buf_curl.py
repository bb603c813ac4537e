"""`buf curl` knows nothing but the address: it learns the services by reflection."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BUF = str(Path(sys.executable).with_name("buf"))
REQUEST = {
    "context": {
        "messages": [
            {"role": "user", "text": "Which flight did you book?"},
            {"role": "assistant", "text": "You fly to Lisbon, reference BK-12345."},
        ]
    },
    "evaluators": [
        {"type": "regex", "config": {"pattern": "BK-[0-9]{5}"}},
        {"type": "response-length", "config": {"unit": "words"}},
    ],
}


def _curl(address: str, method: str, request: object, *options: str) -> list[dict[str, Any]]:
    run = subprocess.run(
        [
            BUF,
            "curl",
            "--http2-prior-knowledge",
            "--protocol",
            "grpc",
            *options,
            "--data",
            json.dumps(request),
            f"http://{address}/{method}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    decoder, text, found = json.JSONDecoder(), run.stdout.strip(), []
    while text:
        message, end = decoder.raw_decode(text)
        found.append(message)
        text = text[end:].strip()
    return found


@pytest.mark.interop
@pytest.mark.parametrize("version", ["grpc-v1", "grpc-v1alpha"])
def test_evaluate_by_reflection(server_process: Any, version: str) -> None:
    messages = _curl(
        server_process.grpc, "evald.v1.EvaluationService/Evaluate", REQUEST, "--reflect-protocol", version
    )
    assert [spec["type"] for spec in messages[0]["started"]["plan"]][:2] == ["regex", "response-length"]
    assert messages[-1]["summary"]["verdict"] == "VERDICT_PASSED"
    results = [result for message in messages for result in message.get("results", [])]
    assert {result["name"]: result.get("value") for result in results}["response-length"] == 6


@pytest.mark.interop
def test_the_catalogue_by_reflection(server_process: Any) -> None:
    (answer,) = _curl(server_process.grpc, "evald.v1.CatalogService/ListEvaluatorTypes", {})
    assert {"regex", "response-length", "trajectory"} <= {entry["type"] for entry in answer["evaluatorTypes"]}
