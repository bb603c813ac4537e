"""Strands Evals: checks of the output, and of a trajectory that is a list of tool names."""

from ..replay import Call, Case, Difference, Vector, answered, called, says

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    if vector["evaluator"] == "ToolCalled":
        spec = {"type": "tool-use", "config": {"expectations": [{"name": config["tool_name"]}]}}
        turn = called([{"name": name, "args": {}} for name in given["actual_trajectory"]])
    else:
        name, key = {"Equals": ("exact-match", "expected"), "StartsWith": ("starts-with", "text")}[
            vector["evaluator"]
        ]
        ignore_case = not config.get("case_sensitive", True)
        spec = {"type": name, "config": {key: config["value"], "ignoreCase": ignore_case}}
        turn = answered(given["actual_output"], expected=given["expected_output"])
    return Case(Call([spec], turn), says(expected["test_pass"], expected["score"]))
