"""NeMo Evaluator: JSON that is looked for in the text, and schemas."""

from ..replay import Call, Case, Difference, Vector, answered, says

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """The vector in evald's terms."""
    if vector["evaluator"] == "extract_json":
        config = {"schema": {"const": vector["expected"]["extracted"]}, "extract": "first"}
        passes = True
    else:
        config = {"schema": vector["config"]["schema"]}
        passes = vector["expected"]["valid"]
    turn = answered(vector["input"]["output"])
    return Case(Call([{"type": "json-schema", "config": config}], turn), says(passes))
