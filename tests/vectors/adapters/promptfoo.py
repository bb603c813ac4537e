"""promptfoo, whose vocabulary AgentV speaks too: `type`, `value`, `threshold`, and a `not-` prefix.

Its score is the verdict as 0 or 1, except for tool-call-f1.
"""

import json
from collections.abc import Mapping
from typing import Any

from ..replay import (
    ERROR,
    FAILED,
    Call,
    Case,
    Difference,
    Expect,
    Spec,
    Vector,
    Wanted,
    answered,
    called,
    refused,
    says,
    scripted,
)

_A_LIST = Difference(
    "they split text at commas into a list, with quotes as in CSV",
    "contains: substrings is a list; a text is one substring, commas and all",
    refused("/config/substrings", "list"),
)

DIFFERENCES = {
    "FW-0351": _A_LIST,
    "FW-0352": _A_LIST,
    "FW-0353": _A_LIST,
    "FW-0358": _A_LIST,
    "FW-0476": Difference(
        "a sequence without steps is an error there",
        "trajectory: an empty expectation is one that can be met; with tool calls beside it the score is 0",
        Expect((Wanted(FAILED, score=0),)),
    ),
}


def adapt(vector: Vector) -> Case:
    """The vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    kind = vector["evaluator"]
    if kind == "not-webhook":
        return _malformed(given["remote_response"])
    spec = assertion(kind, config)
    if "latency_ms" in given or "cost_usd" in given:
        turn = answered("ok", latency_ms=given.get("latency_ms"), cost_usd=given.get("cost_usd"))
    elif kind == "tool-call-f1" or "tool_calls" in given:
        turn = called(*_calls(given))
    else:
        turn = answered(given["output"])
    return Case(Call([spec], turn), _expect(kind, expected))


def assertion(kind: str, config: Vector) -> Spec:
    """The spec that an assertion of theirs stands for."""
    if kind.startswith("not-"):
        return {**assertion(kind.removeprefix("not-"), config), "negate": True}
    name, evald_config = _config(kind, config)
    return {"type": name, "config": evald_config}


def _config(kind: str, config: Vector) -> tuple[str, dict[str, Any]]:
    value: Any = config.get("value")
    match kind:
        case "contains" | "icontains":
            return kind, {"text": str(value)}
        case "contains-any" | "contains-all":
            return kind, {"substrings": value}
        case "equals" if isinstance(value, dict | list):
            return "json-match", {"expected": value}
        case "equals":
            return "equals", {"expected": value}
        case "latency":
            return "latency", _without_none(maxMs=config.get("threshold"))
        case "cost":
            return "cost", _without_none(maxUsd=config.get("threshold"))
        case "is-json" if value is not None:
            return "json-schema", {"schema": value}
        case "is-json":
            return "is-json", {}
        case "word-count" if isinstance(value, Mapping):
            return "word-count", dict(value)
        case "word-count":
            return "word-count", {} if value is None else {"min": int(value), "max": int(value)}
        case "tool-call-f1":
            return "trajectory", {"mode": "unordered", "expected": value, "score": "f1"}
        case "trajectory:tool-used":
            return "tool-use", {"expectations": [_tool_used(value)]}
        case "trajectory:tool-args-match":
            return "tool-use", {"expectations": [_tool_args(value)]}
        case "trajectory:tool-sequence":
            sequence = value if isinstance(value, Mapping) else {"steps": value}
            mode = sequence.get("mode", "in_order")
            return "trajectory", {"mode": mode, "expected": sequence["steps"]}
    raise ValueError(kind)


def _without_none(**config: Any) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _tool_used(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    keys = {"name": "name", "pattern": "pattern", "min": "minCalls", "max": "maxCalls"}
    return {keys[key]: count for key, count in value.items()}


def _tool_args(value: Vector) -> dict[str, Any]:
    kept = {key: value[key] for key in ("name", "pattern", "args", "defaults") if key in value}
    ignored = value.get("ignore", [])
    return {
        **kept,
        "argsMatch": value.get("mode", "partial"),
        "ignore": [ignored] if isinstance(ignored, str) else ignored,
    }


def _calls(given: Vector) -> tuple[list[Any], str]:
    """Tool calls in any provider's shape, and the text of an output without any."""
    if "tool_calls" in given:
        return given["tool_calls"], "Done."
    if "tools_called" in given:
        return [{"name": name, "args": {}} for name in given["tools_called"]], "Done."
    output = given["output"]
    if isinstance(output, str):
        try:
            output = json.loads(output)
        except ValueError:
            return [], str(output)
    if isinstance(output, Mapping):
        output = output.get("tool_calls", [output])
    return list(output or ()), "Done."


def _expect(kind: str, expected: Vector) -> Expect:
    if "error" in expected:
        return refused(_WRONG[kind])
    if kind != "tool-call-f1":
        return says(expected["pass"], expected.get("score") if expected["pass"] else None)
    passes = expected.get("pass", expected["score"] == 1)
    return says(passes, expected["score"], expected.get("abs_tol", 1e-9))


# What of the config is wrong in their cases that end in an error.
_WRONG = {
    "contains-any": "/config/substrings",
    "cost": "/config/maxUsd",
    "latency": "/config/maxMs",
    "trajectory:tool-sequence": "/config/expected",
    "word-count": "min",
}


def _malformed(response: Any) -> Case:
    """A verdict that is none: an error, and no pass either way round."""
    answer = {"success": response["pass"]} if response and "pass" in response else response
    specs: list[Spec] = [{"type": "webhook"}, {"type": "webhook", "negate": True}]
    call = Call(specs, answered("ok"), plugins=[scripted("webhook", answer)])
    error = Wanted(ERROR, success=False)
    return Case(call, Expect((error, error), Wanted(ERROR, success=False)))
