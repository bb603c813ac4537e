"""DeepEval: a tool is its name and its type, so the type goes into the name, as MCP hosts write it.

Extra calls do no harm there unless an exact match is asked for.
"""

from ..replay import Call, Case, Difference, Vector, called, says

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    mode = "superset"
    if config.get("should_consider_ordering"):
        mode = "in_order"
    if config.get("should_exact_match"):
        mode = "exact"
    spec = {
        "type": "trajectory",
        "config": {
            "mode": mode,
            "expected": [_name(tool) for tool in given["expected_tools"]],
        },
    }
    calls = [
        {"name": _name(tool), "args": tool.get("input_parameters", {})} for tool in given["tools_called"]
    ]
    return Case(Call([spec], called(calls)), says(score=expected["score"]))


def _name(tool: Vector) -> str:
    return f"{tool['type'].lower()}__{tool['name']}"
