"""pydantic-evals: a trajectory is a list of tool names, graded by F1."""

import json
from typing import Any

from ..replay import (
    SKIPPED,
    Call,
    Case,
    Difference,
    Expect,
    Vector,
    Wanted,
    answered,
    called,
    refused,
    says,
)

DIFFERENCES = {
    "FW-0298": Difference(
        "they take the index -1 for a call that is not there",
        "tool-use: an occurrence is first, last or an index from 0; another number is refused",
        refused("occurrence"),
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    if "tool_calls" not in given:
        return _output(vector)
    calls = [{"name": call, "args": {}} if isinstance(call, str) else call for call in given["tool_calls"]]
    value = expected["value"]
    expect = says(value) if isinstance(value, bool) else says(score=value, tolerance=expected["abs_tol"])
    return Case(Call([_spec(vector["evaluator"], config)], called(calls)), expect)


def _spec(kind: str, config: Vector) -> dict[str, Any]:
    match kind:
        case "TrajectoryMatch":
            expected = config["expected_trajectory"]
            return {
                "type": "trajectory",
                "config": {"mode": config["order"], "expected": expected, "score": "f1"},
            }
        case "ToolCorrectness":
            mode = "superset" if config["allow_extra"] else "unordered"
            return {"type": "trajectory", "config": {"mode": mode, "expected": config["expected_tools"]}}
        case "ArgumentCorrectness":
            modes = {"subset": "superset", "exact": "exact"}
            expectation = {
                "name": config["tool_name"],
                "args": config["expected_arguments"],
                "argsMatch": modes[config.get("match_mode", "subset")],
            }
            if "occurrence" in config:
                expectation["occurrence"] = config["occurrence"]
            return {"type": "tool-use", "config": {"expectations": [expectation]}}
        case "MaxToolCalls":
            return {"type": "tool-call-budget", "config": {"maxCalls": config["max_calls"]}}
    raise ValueError(kind)


def _output(vector: Vector) -> Case:
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    output = given["output"]
    turn = answered(output if isinstance(output, str) else json.dumps(output))
    if vector["evaluator"] == "EqualsExpected":
        spec = {"type": "exact-match", "config": {"onMissing": "skip"}}
        return Case(Call([spec], turn), Expect((Wanted(SKIPPED),)))
    if isinstance(config["value"], dict):
        spec = {"type": "json-match", "config": {"expected": config["value"], "mode": "subset"}}
    else:
        spec = {"type": "contains", "config": {"text": config["value"]}}
    return Case(Call([spec], turn), says(expected["value"]))
