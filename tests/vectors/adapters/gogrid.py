"""GoGrid: `value` is a score, a suite is a call in which all must pass."""

from evald.result import Result, Verdict
from evald.turn import Turn
from evald_server.judge.prompt_request import JudgeError

from ..replay import (
    ERROR,
    FAILED,
    PASSED,
    Call,
    Case,
    Difference,
    Expect,
    Spec,
    Vector,
    Wanted,
    answered,
    refused,
    says,
    scripted,
)

# Their `pass` and `value` are compared, not the texts of their reasons.
_TYPES = {
    "exact_match": ("exact-match", {"expected": "expected"}),
    "contains": ("contains", {"substrings": "substrings"}),
    "cost_within": ("cost-within", {"max_cost_usd": "maxUsd"}),
    "completed_within": ("completed-within", {"limit_ms": "limitMs"}),
}

DIFFERENCES = {
    "GG-029": Difference(
        "Go cannot tell a minimum of 0 from none, and takes it for 1",
        "absent is never 0: an explicit 0 is what was asked for, and with a maximum of 0 it says that a tool "
        "must not be called; but here a result without its call says that a call is missing, so there is no verdict",
        Expect((Wanted(ERROR, error="UNREADABLE_CONTENT", unscored=True),)),
    ),
    "GG-050": Difference(
        "an empty suite passes there",
        "a call without any evaluator is refused: nothing asked must not look like a pass",
        refused("at least one evaluator"),
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    kind, config, given, expected = (vector[key] for key in ("evaluator", "config", "context", "expected"))
    if kind == "aggregate:suite":
        return _suite(vector)
    if kind == "llm_judge:rubric_0_10":
        return _judge(vector)
    spec: Spec
    if kind == "tool_use":
        spec = {
            "type": "tool-use",
            "config": {"expectations": [_expectation(one) for one in config["expectations"]]},
        }
    else:
        spec = _spec(kind, config)
    if "history" in given:
        turn = Turn(given["history"])
    else:
        run_duration_ms = given.get("duration_ms")
        turn = answered(
            given.get("output", "ok"), cost_usd=given.get("cost_usd"), run_duration_ms=run_duration_ms
        )
    return Case(
        Call([spec], turn), says(expected["pass"], expected["value"], expected.get("tolerance", 1e-9))
    )


def _judge(vector: Vector) -> Case:
    """Return the judge's case. The expected prompt is the same, except that the output is fenced."""
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    keys = {"rubric": "rubric", "pass_threshold": "passScore", "prompt_template": "promptTemplate"}
    spec = {"type": "llm-judge", "config": {keys[key]: value for key, value in config.items()}}
    replies = [
        one if isinstance(one, str) else JudgeError("JUDGE_TIMEOUT", one["error"])
        for one in vector["judge_responses"]
    ]
    call = Call([spec], answered(given["output"]), judge=replies)
    if "error_contains" in expected:
        code = "JUDGE_TIMEOUT" if "provider" in expected["error_contains"] else "JUDGE_UNPARSEABLE"
        return Case(call, Expect((Wanted(ERROR, error=code),)))
    return Case(call, says(expected["pass"], expected.get("value"), reason=expected.get("reason")))


def _spec(kind: str, config: Vector) -> dict[str, object]:
    name, keys = _TYPES[kind]
    return {"type": name, "config": {keys[key]: value for key, value in config.items()}}


def _expectation(one: Vector) -> dict[str, object]:
    keys = {"name": "name", "min_calls": "minCalls", "max_calls": "maxCalls", "args": "args"}
    return {keys[key]: value for key, value in one.items()}


def _suite(vector: Vector) -> Case:
    config, given, expected = (vector[key] for key in ("config", "context", "expected"))
    if config:
        specs = []
        for one in config["evaluators"]:
            if one["type"] == "func:min_length":
                specs.append({"type": "length-within", "name": "min_length", "config": one["config"]})
            else:
                specs.append(_spec(one["type"], one["config"]))
        call = Call(specs, answered(given["output"], cost_usd=given["cost_usd"]))
    else:
        call = Call(
            [{"type": output["name"]} for output in given["outputs"]],
            answered("ok"),
            plugins=[
                scripted(
                    output["name"],
                    Result(
                        Verdict.PASSED if output["pass"] else Verdict.FAILED,
                        output["reason"],
                        score=output["value"],
                    ),
                )
                for output in given["outputs"]
            ],
        )
    results = tuple(
        Wanted(PASSED if one["pass"] else FAILED, score=one["value"]) for one in expected["scores"].values()
    )
    return Case(call, Expect(results, Wanted(PASSED if expected["pass"] else FAILED)))
