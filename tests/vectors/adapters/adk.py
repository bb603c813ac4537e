"""Google ADK: EXACT, IN_ORDER and ANY_ORDER over the tool calls of an invocation."""

from ..replay import Call, Case, Difference, Expect, Vector, Wanted, called, refused, says

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    if vector["evaluator"] == "ToolTrajectoryCriterion.match_type":
        spec = _spec(config["match_type"], [])
        known = expected["normalized"] != "ERROR"
        return Case(Call([spec], called([])), Expect((Wanted(),)) if known else refused("mode"))
    ((actual,), (wanted,)) = given["actual_invocations"], given["expected_invocations"]
    spec = {**_spec(config["match_type"], wanted), "threshold": config["threshold"]}
    passes = expected["overall_eval_status"] == "PASSED"
    return Case(Call([spec], called(actual)), says(passes, expected["overall_score"]))


def _spec(match_type: str, wanted: list[Vector]) -> dict[str, object]:
    config = {
        "mode": match_type.lower(),
        "expected": [{"tool": call["name"], "args": call["args"]} for call in wanted],
    }
    return {"type": "trajectory", "config": config}
