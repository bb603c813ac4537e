"""autoevals: scores only; what is not text is compared as JSON."""

import json
from typing import Any

from ..replay import FAILED, PASSED, Call, Case, Difference, Expect, Vector, Wanted, answered, says

DIFFERENCES = {
    "FW-0254": Difference(
        "only objects and arrays are JSON there",
        "is-json: scalars are valid",
        Expect((Wanted(PASSED),)),
    ),
    "FW-0200": Difference(
        "an empty answer equals an empty reference there",
        "a turn without text has no answer, so that no check for absence passes on it",
        Expect((Wanted(FAILED),)),
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    output, expected = vector["input"]["output"], vector["input"].get("expected")
    reference: dict[str, Any] | None = None
    spec: dict[str, Any]
    match vector["evaluator"]:
        case "Levenshtein":
            spec = {"type": "levenshtein", "config": {"threshold": 1.0}}
            reference = {"text": expected}
        case "NumericDiff":
            spec = {"type": "numeric-diff", "config": {"expected": expected}}
        case "ValidJSON":
            spec = {"type": "is-json"}
        case _:
            spec = {"type": "json-diff"}
            reference = {"data": _parsed(expected)}
    turn = answered(output if isinstance(output, str) else json.dumps(output), expected=reference)
    score = vector["expected"]["score"]
    return Case(Call([spec], turn), says(score == 1, score, vector["config"].get("abs_tol", 1e-9)))


def _parsed(expected: Any) -> Any:
    """Return the data of text that is JSON, as autoevals does."""
    try:
        return json.loads(expected)
    except (TypeError, ValueError):
        return expected
