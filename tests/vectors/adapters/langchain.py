"""LangChain agentevals and openevals: trajectories as message lists, and JSON compared key by key."""

import json

from evald.turn import Turn

from ..replay import Call, Case, Difference, Vector, answered, says

DIFFERENCES: dict[str, Difference] = {
    "FW-0069": Difference(
        "a path that neither call has is nothing in which they differ",
        "Paths of argsMatch that are on neither side are equal",
        says(True),
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    if vector["evaluator"] == "create_json_match_evaluator":
        return _json_match(vector)
    config, given = vector["config"], vector["input"]
    spec = {
        "type": "trajectory",
        "config": {
            "mode": config.get("trajectory_match_mode", "strict"),
            "argsMatch": config.get("tool_args_match_mode", "exact"),
            "argsMatchOverrides": config.get("tool_args_match_overrides", {}),
            "scope": "conversation",
        },
    }
    turn = Turn(messages=given["outputs"], expected={"messages": given["reference_outputs"]})
    return Case(Call([spec], turn), says(vector["expected"]["score"]))


def _json_match(vector: Vector) -> Case:
    config, given = vector["config"], vector["input"]
    reference = given["reference_outputs"]
    if config["aggregator"] == "all":
        fields = [{"path": key} for key in reference]
        spec = {"type": "field-accuracy", "config": {"fields": fields, "aggregation": "all"}}
    else:
        spec = {
            "type": "json-match",
            "config": {
                # Seen from the expected data, of which the answer may be a part.
                "mode": _LIST_MODES[config.get("list_match_mode", "same_elements")],
                "arrays": "unordered",
                "ignore": config.get("exclude_keys", []),
            },
        }
    turn = answered(json.dumps(given["outputs"]), expected={"data": reference})
    (feedback,) = vector["expected"]
    return Case(Call([spec], turn), says(score=feedback["score"]))


_LIST_MODES = {"same_elements": "exact", "subset": "superset", "superset": "subset"}
