"""EvalStudio: the types, config keys and reasons are evald's own; its `value` of an assertion is a score."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from evald.context import EvaluatorContext
from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import ASSERTION, METRIC, Kind, Result, Verdict
from evald.turn import Turn
from evald.v1.context_pb2 import Persona
from evald_server.connectors.connector import ConnectorFailure
from evald_server.engine.registry import Origin

from ...runs.scripted import scenario
from ..driven import Drive, ScriptedUse
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

_TOGETHER = "there the criteria are judged before the other evaluators, which are then told that the turn is the last one"
_TOGETHER_RULE = (
    "all evaluators of a turn run at the same time; those that are for the last turn only run once more when "
    "something has ended the run"
)
_NO_ROOM = (
    "there a scenario whose limit leaves no room for an answer fails every run",
    "what cannot be played is refused when it is saved, and is an error when it is run: never a failure of the agent",
)


def _context(name: str) -> Mapping[str, Any]:
    return {"type": name, "turn": 1, "isFinal": False, "messages": 2, "lastMessages": 1}


def _run(**wanted: Any) -> Expect:
    return Expect(run=wanted)


DIFFERENCES = {
    "ESS-037": Difference(
        "there tool calls of a user message are passed over",
        "what looks like a tool call and stands where none is read leaves checks of tools without a verdict",
        Expect((Wanted(ERROR, error="UNREADABLE_CONTENT"),)),
    ),
    "ES-031": Difference(
        "there a run is a success when both criteria are met, with a reason that says that it has failed",
        "a met failure criterion outranks a met success criterion",
        _run(
            status="completed",
            success=False,
            score=0.1,
            reason="Failure criteria was triggered. both",
            turns=1,
            maxMessagesReached=False,
        ),
    ),
    "ES-033": Difference(
        "there a scenario with failure criteria alone cannot succeed",
        "with failure criteria alone the criteria are met when no failure is, judged when it counts",
        _run(status="completed", success=True, reason="polite", maxMessagesReached=True, messageCount=2),
    ),
    "ES-034": Difference(
        "there an answer that cannot be read is a failed turn with confidence 0, and the run goes on",
        "an unusable answer is asked for once more, then it is an error, and a run that has one has no verdict",
        _run(status="error", verdict=ERROR, success=False, judge_calls=2, turns=1),
    ),
    "ES-040": Difference(
        _TOGETHER,
        _TOGETHER_RULE,
        _run(success=True, score=0.9, reason="ok", metrics={"m1": 3}, evaluator_contexts=[_context("m1")]),
    ),
    "ES-041": Difference(
        "there a metric that raises fails the run, as an assertion of type unknown",
        "a metric that breaks is an error with a warning, keeps its type, and has no effect on the verdict",
        _run(status="completed", success=True, score=0.9, reason="ok", metrics={}),
    ),
    "ES-042": Difference(
        f"there a metric may say that it was no success; {_TOGETHER}",
        f"a metric never fails; {_TOGETHER_RULE}",
        _run(
            success=True,
            score=0.9,
            reason="ok",
            metrics={"m1": 3},
            evaluatorResults=[{"type": "m1", "kind": "metric", "success": True, "value": 3, "reason": "odd"}],
        ),
    ),
    "ES-043": Difference(
        _TOGETHER,
        _TOGETHER_RULE,
        _run(
            success=False,
            score=0.9,
            reason="Evaluator assertion failed. first",
            turns=1,
            evaluator_contexts=[_context("a1"), _context("a2")],
        ),
    ),
    "ES-046": Difference(*_NO_ROOM, _run(status="error", verdict=ERROR, turns=0, judge_calls=0)),
    "ES-049": Difference(*_NO_ROOM, _run(status="error", verdict=ERROR, turns=0, judge_calls=0)),
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
    """Return the vector in evald's terms."""
    match vector["evaluator"]:
        case "aggregate:all_must_pass_min":
            return _aggregate(vector)
        case "registry:register" | "registry:get":
            return _registry(vector)
        case "llm-judge:criteria":
            return _judge(vector)
        case "conversation-loop":
            return _drive(vector)
        case _:
            return _evaluate(vector)


def _judge(vector: Vector) -> Case:
    """Return the judge's case. A turn without a number is the only one, and both criteria count."""
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


def _drive(vector: Vector) -> Case:
    """Return the run of a loop. Its evaluators become types; the persona's prompt is no message."""
    config, given, expected = vector["config"], vector["context"], vector["expected"]
    fields = dict(config["scenario"])
    if "failureCriteriaMode" in fields:
        fields["failureCriteriaMode"] = f"FAILURE_CRITERIA_MODE_{fields['failureCriteriaMode'].upper()}"
    uses = [
        ScriptedUse(one["type"], _KINDS[one["kind"]], [_result(one, r) for r in one["results_per_turn"]])
        for one in config["evaluators"]
    ]
    answers = list(given["connector_replies_per_turn"])
    if "connector_fails_on_call" in given:
        failure = ConnectorFailure("CONNECTOR_UNAVAILABLE", expected["error"], retryable=True)
        answers.insert(given["connector_fails_on_call"], failure)
    drive = Drive(
        scenario([{"type": use.type} for use in uses], fields.pop("messages", ()), **fields),
        uses,
        answers,
        given["judge_results_per_turn"],
        json_format.ParseDict(config["persona"], Persona()) if "persona" in config else None,
    )
    wanted = {key: value for key, value in expected.items() if key not in ("result", "evaluatorResults")}
    wanted |= expected.get("result", {})
    wanted["roles"] = [role for role in expected["roles"] if role != "system"]
    if "evaluatorResults" in expected:
        wanted["evaluatorResults"] = [
            {key: value for key, value in one.items() if key != "label"}
            for one in expected["evaluatorResults"]
        ]
    return Case(drive, Expect(run=wanted))


def _result(use: Mapping[str, Any], output: Mapping[str, Any]) -> Result | Exception:
    if "throw" in output:
        return RuntimeError(output["throw"])
    verdict = Verdict.PASSED if output["success"] or use["kind"] == "metric" else Verdict.FAILED
    return Result(verdict, output["reason"], value=output.get("value"))
