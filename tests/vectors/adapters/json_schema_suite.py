"""The JSON Schema Test Suite: an instance is the answer, as JSON."""

import json

from ..replay import Call, Case, Difference, Vector, answered, says

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    valid = vector["expected"]["valid"]
    spec = {"type": "json-schema", "config": {"schema": vector["config"]["schema"]}}
    turn = answered(json.dumps(vector["input"]["instance"]))
    return Case(Call([spec], turn), says(valid, float(valid)))
