"""EvalStudio: the types, config keys and reasons are evald's own; its `value` of an assertion is a score."""

from collections.abc import Mapping
from typing import Any

from evald.context import EvaluatorContext
from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import ASSERTION, METRIC, Kind, Result, Verdict
from evald.turn import Turn
from evald_server.engine.registry import Origin

from ..replay import (
    ERROR,
    PASSED,
    Call,
    Case,
    Difference,
    Expect,
    Look,
    Register,
    Vector,
    Wanted,
    answered,
    scripted,
    unparseable,
)

_KINDS = {"assertion": ASSERTION, "metric": METRIC}

_UNPARSEABLE = Difference(
    "there an answer that cannot be read is a failed turn with confidence 0",
    "llm-judge: an unusable answer is asked for once more, then it is an error: never a 0, never a guess",
    unparseable(),
)

DIFFERENCES = {
    "ES-008": Difference(
        "there a run of metrics alone says that all evaluators passed",
        "where nothing gates, the turn passes and the reason says that no assertion counted",
        Expect((), Wanted(PASSED, success=True, reason="No assertion counted: 1 metric only")),
    ),
    "ES-015": _UNPARSEABLE,
    "ES-020": _UNPARSEABLE,
    "ESS-026": Difference(
        'their validator knows no format "date" and reports that as invalid JSON',
        "json-schema: known formats are enforced, unknown ones ignored; a wrong schema, invalid JSON and a "
        "mismatch are three outcomes",
        Expect((Wanted(PASSED, score=1, reason="Response matches JSON schema"),)),
    ),
    "ESS-027": Difference(
        "they read an answer made of content blocks as the empty text",
        "the text of a message is its text blocks joined with nothing between, for every evaluator",
        Expect((Wanted(PASSED, score=1, reason="Response matches JSON schema"),)),
    ),
    "ES-010": Difference(
        "there a metric that raises fails the run, as an assertion of type unknown",
        "a metric that breaks is an error with a warning, keeps its type, and has no effect on the verdict",
        Expect(
            (Wanted(ERROR, success=True, error="EVALUATOR_EXCEPTION"), Wanted(PASSED, score=1)),
            Wanted(PASSED, success=True, score=1, reason="All evaluators passed"),
        ),
    ),
}


def adapt(vector: Vector) -> Case:
    """The vector in evald's terms."""
    match vector["evaluator"]:
        case "aggregate:all_must_pass_min":
            return _aggregate(vector)
        case "registry:register" | "registry:get":
            return _registry(vector)
        case "llm-judge:criteria":
            return _judge(vector)
        case _:
            return _evaluate(vector)


def _judge(vector: Vector) -> Case:
    """Without a number the turn stands alone, and both criteria count."""
    expected = vector["expected"]
    wanted = Wanted(
        success=expected["seed_success"],
        reason=expected["reasoning"],
        metadata={key: expected[key] for key in ("successMet", "failureMet", "confidence")},
    )
    spec = {"type": "llm-judge", "config": vector["config"]}
    turn = Turn.from_dict(vector["context"])
    return Case(Call([spec], turn, judge=vector["judge_responses"]), Expect((wanted,)))


def _evaluate(vector: Vector) -> Case:
    expected = vector["expected"]
    number = "value" if expected["kind"] == "metric" else "score"
    wanted = Wanted(
        success=expected["success"],
        reason=expected.get("reason"),
        reason_start=expected.get("reason_prefix"),
        metadata=expected.get("metadata", {}),
        **({number: expected["value"]} if "value" in expected else {}),
    )
    spec = {"type": vector["evaluator"], "config": vector["config"]}
    return Case(Call([spec], Turn.from_dict(vector["context"]), plugins=[_GREETING_CHECK]), Expect((wanted,)))


def _greets(ctx: EvaluatorContext) -> tuple[bool, str]:
    greetings = ("hello", "hi", "hey", "welcome")
    if any(greeting in (ctx.answer or "").lower().split() for greeting in greetings):
        return True, "Response contains a greeting"
    return False, f"Response does not contain a greeting. Expected one of: {', '.join(greetings)}"


_GREETING_CHECK = define_evaluator(type="greeting-check", kind=ASSERTION, evaluate=_greets, inline=True)


def _aggregate(vector: Vector) -> Case:
    outputs = vector["context"]["evaluator_outputs_in_order"]
    expected = vector["expected"]
    results = tuple(
        Wanted(success=one["success"], reason=one["reason"]) for one in expected["evaluatorResults"]
    )
    summary = Wanted(
        success=expected["success"],
        score=expected.get("score"),
        unscored="score" not in expected,
        reason=expected["reason"],
        metrics=expected["metrics"],
    )
    call = Call(
        [{"type": output["type"]} for output in outputs],
        answered("ok"),
        plugins=[_output(output) for output in outputs],
    )
    return Case(call, Expect(results, summary))


def _output(output: Mapping[str, Any]) -> EvaluatorDefinition:
    kind = _KINDS[output["kind"]]
    if "throw" in output:
        return scripted(output["type"], RuntimeError(output["throw"]), kind)
    verdict = Verdict.PASSED if output["success"] else Verdict.FAILED
    number = output.get("value")
    if kind is Kind.METRIC:
        return scripted(output["type"], Result(verdict, output["reason"], value=number), kind)
    return scripted(output["type"], Result(verdict, output["reason"], score=number), kind)


def _registry(vector: Vector) -> Case:
    given, expected = vector["context"], vector["expected"]
    present = [
        (scripted(one["type"], True), Origin.BUILT_IN if one["builtin"] else Origin.PLUGIN)
        for one in given["registered"]
    ]
    if "get" in given:
        return Case(Look(given["get"], present), Expect(found=expected["result"] is not None))
    words = expected.get("error") or expected["error_contains"]
    return Case(Register(scripted(given["register"]["type"], True), present), Expect(refused=(words,)))
