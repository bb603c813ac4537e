"""NeMo Evaluator: JSON that is looked for in the text, schemas, and statistics of trials and pairs."""

from evald_server.suites.statistics import mcnemar_p, pass_at_k

from ..figures import Figures, mean_figures
from ..replay import Call, Case, Difference, Expect, Vector, answered, says

_NO_WIDTH = "drawing from equal scores again gives equal scores, so their interval has no width"
_WILSON = "estimate_mean: Wilson's interval, which has a width however alike the cases are"

DIFFERENCES = {
    # 100 of 100 and 0 of 100: 1.96^2 / (100 + 1.96^2).
    "FW-0515": Difference(
        _NO_WIDTH, _WILSON, Expect(run={"mean": 1.0, "low": 0.9630065017930143, "high": 1.0})
    ),
    "FW-0516": Difference(
        _NO_WIDTH, _WILSON, Expect(run={"mean": 0.0, "low": 0.0, "high": 0.03699349820698568})
    ),
    "FW-0517": Difference(
        _NO_WIDTH, _WILSON, Expect(run={"mean": 0.5, "low": 0.05462075552885203, "high": 0.9453792444711481})
    ),
}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    if vector["evaluator"] in _FIGURES:
        return _FIGURES[vector["evaluator"]](vector)
    if vector["evaluator"] == "extract_json":
        config = {"schema": {"const": vector["expected"]["extracted"]}, "extract": "first"}
        passes = True
    else:
        config = {"schema": vector["config"]["schema"]}
        passes = vector["expected"]["valid"]
    turn = answered(vector["input"]["output"])
    return Case(Call([{"type": "json-schema", "config": config}], turn), says(passes))


def _pass_at_k(vector: Vector) -> Case:
    counts, k = vector["input"], vector["config"]["k"]
    figures = Figures(lambda: {"value": pass_at_k(counts["n"], counts["c"], k)})
    return Case(figures, Expect(run={"value": vector["expected"]["value"]}))


def _interval(vector: Vector) -> Case:
    expected, scores = vector["expected"], vector["input"]["scores"]
    wanted = {"mean": expected["mean"], "low": expected["ci_lower"], "high": expected["ci_upper"]}
    return Case(Figures(lambda: mean_figures(scores)), Expect(run=wanted))


def _mcnemar(vector: Vector) -> Case:
    given = vector["input"]
    least, most = vector["expected"]["p_value_between"]
    figures = Figures(lambda: {"fits": least < mcnemar_p(given["regressions"], given["improvements"]) < most})
    return Case(figures, Expect(run={"fits": True}))


_FIGURES = {"pass_at_k": _pass_at_k, "bootstrap_ci": _interval, "mcnemar_test": _mcnemar}
