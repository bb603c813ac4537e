"""inspect_ai: C is a pass, I is a fail; f1 is rounded to two decimals."""

from typing import Any

from evald_server.suites.statistics import pass_at_k, pass_hat_k

from ..figures import Figures, case_figures
from ..replay import FAILED, PASSED, Call, Case, Difference, Expect, Vector, Wanted, answered, says

_CAPTURES = Difference(
    "their pattern compares what its groups captured with the target",
    "regex: a search; whether the pattern is found decides, so a target is written into the pattern",
    Expect((Wanted(PASSED),)),
)

DIFFERENCES = {
    "FW-0074": Difference(
        '"60%" is no number there, so the last number of the answer is 32',
        "numeric: the last number of the answer; percent signs are documented",
        Expect((Wanted(FAILED),)),
    ),
    "FW-0107": _CAPTURES,
    "FW-0108": _CAPTURES,
    "FW-0110": _CAPTURES,
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    kind, _, reducer = vector["evaluator"].partition(":")
    if kind == "reducer":
        return _reduced(reducer, config, given["scores"], expected["value"])
    (target,) = given["target"]
    turn = answered(given["output"], expected=target)
    if vector["evaluator"] == "f1":
        spec = {"type": "token-f1", "config": {"threshold": 1.0}}
        return Case(Call([spec], turn), says(score=expected["value"], tolerance=0.005))
    return Case(Call([_spec(vector["evaluator"], config, target)], turn), says(expected["value"] == "C"))


def _spec(kind: str, config: Vector, target: str) -> dict[str, Any]:
    match kind:
        case "match":
            extract = _EXTRACT[config.get("location", "end")]
            return {"type": "numeric", "config": {"expected": float(target), "extract": extract}}
        case "pattern":
            pattern = config.get("pattern") or config["args"][0]
            return {
                "type": "regex",
                "config": {"pattern": pattern, "flags": "i" * config.get("ignore_case", False)},
            }
        case "exact":
            return {"type": "exact-match", "config": {"trim": True}}
    raise ValueError(kind)


_EXTRACT = {"begin": "first", "end": "last", "any": "any", "exact": "last"}


def _reduced(reducer: str, config: Vector, scores: list[float], expected: float) -> Case:
    """Return the case of a reducer, which counts scores of at least `value` as passed."""
    passed = [score >= config.get("value", 1.0) for score in scores]
    trials, hits, k = len(passed), sum(passed), config["k"]
    if reducer == "at_least":
        verdict = PASSED if expected else FAILED
        figures = Figures(lambda: case_figures([(1.0, each) for each in passed], k))
        return Case(figures, Expect(run={"verdict": verdict}))
    estimate = {"pass_at": pass_at_k, "pass_k": pass_hat_k}[reducer]
    return Case(Figures(lambda: {"value": estimate(trials, hits, k)}), Expect(run={"value": expected}))
