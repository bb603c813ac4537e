"""Convert runs, their turns, results and events to JSON data, and runs back.

`run_to_json` writes the fields for lists. With `whole` it also writes all other data, to store the run elsewhere:
turns, complete results, and copies of scenario, persona and connector. `run_from_json` reads both forms, and the
runs of EvalStudio.
"""

from typing import Any, Final

from ..errors import InvalidInput
from ..fields import join, read_keys, snake, text
from ..v1 import evaluator_pb2, message_pb2, result_pb2, run_service_pb2
from .json_shapes import (
    COUNT,
    FLAG,
    LONG_COUNT,
    MESSAGES,
    MILLISECONDS,
    NUMBER,
    NUMBER_MAP,
    STRUCT,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    Shape,
    choice,
    message_to_json,
    nested,
    repeated,
)
from .resources import CONNECTOR, PERSONA, SCENARIO

_VERDICT: Final = choice("PASSED", "FAILED", "ERROR", "SKIPPED")
STATUSES: Final = ("queued", "running", "completed", "error", "interrupted", "cancelled")

_USAGE: Final = Shape(
    message_pb2.TokenUsage,
    dict.fromkeys(
        ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "reasoning_tokens"),
        LONG_COUNT,
    ),
)
_COST: Final = Shape(message_pb2.Cost, {"currency_code": TEXT, "amount": NUMBER}, always=("amount",))
_SPENT: Final = {"token_usage": nested(_USAGE), "cost": nested(_COST)}

_ERROR: Final = Shape(
    result_pb2.EvaluationError,
    {
        "code": TEXT,
        "category": choice("INFRASTRUCTURE", "CONFIG", "EVALUATOR", "JUDGE", "CANCELLED"),
        "message": TEXT,
        "retryable": FLAG,
        "metadata": TEXT_MAP,
    },
    always=("code", "message"),
)
_CHECK: Final = Shape(result_pb2.Check, {"text": TEXT, "met": FLAG, "evidence": TEXT}, always=("text", "met"))

_PROVENANCE: Final = Shape(
    result_pb2.Provenance,
    {"config_sha256": TEXT, "judge_models": TEXTS, "prompt_sha256": TEXT, "calibration_card": TEXT},
)

_RESULT_FIELDS: Final = {
    "type": TEXT,
    "label": TEXT,
    "kind": choice("assertion", "metric"),
    "success": FLAG,
    "value": NUMBER,
    "reason": TEXT,
    "metadata": STRUCT,
    "name": TEXT,
    "verdict": _VERDICT,
    "score": NUMBER,
    "pending": FLAG,
    "error": nested(_ERROR),
    "duration": MILLISECONDS,
}
_MORE_OF_A_RESULT: Final = {
    "index": COUNT,
    "version": TEXT,
    "enforcement": choice("enforced", "shadow"),
    "checks": repeated(_CHECK.read, _CHECK.write, _CHECK.schema()),
    "start_time": TIME,
    "instance_id": TEXT,
    "cached": FLAG,
    "cached_answer_count": COUNT,
    "raw_request": STRUCT,
    "provenance": nested(_PROVENANCE),
    **_SPENT,
}
_IN_MS: Final = {
    "duration": "duration_ms",
    "latency": "latency_ms",
    "time_to_first_token": "time_to_first_token_ms",
    "average_latency": "avg_latency_ms",
    "total_latency": "total_latency_ms",
}
_ALWAYS: Final = ("type", "label", "success", "reason", "name")
_RESULT: Final = Shape(
    result_pb2.EvaluationResult, _RESULT_FIELDS, renamed=_IN_MS, always=_ALWAYS, title="Result"
)
_WHOLE_RESULT: Final = Shape(
    result_pb2.EvaluationResult,
    _RESULT_FIELDS | _MORE_OF_A_RESULT,
    renamed=_IN_MS,
    always=_ALWAYS,
    title="WholeResult",
)


def result_schema(*, whole: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a result."""
    schema = (_WHOLE_RESULT if whole else _RESULT).schema()
    return schema | {"properties": schema["properties"] | {"measured": NUMBER.schema}}


def result_to_json(pb: result_pb2.EvaluationResult, *, whole: bool = False) -> dict[str, Any]:
    """Convert a result. `value` is a metric's value or an assertion's score; `measured` is an assertion's value."""
    data = (_WHOLE_RESULT if whole else _RESULT).write(pb)
    if pb.kind != evaluator_pb2.EVALUATOR_KIND_METRIC:
        measured, score = data.pop("value", None), data.get("score")
        data |= {"value": score} if score is not None else {}
        data |= {"measured": measured} if measured is not None else {}
    return data


def _whole_result_to_json(pb: result_pb2.EvaluationResult) -> dict[str, Any]:
    return result_to_json(pb, whole=True)


def _result_from_json(data: Any, path: str) -> result_pb2.EvaluationResult:
    """Convert a result of evald, or of EvalStudio, which has neither a name nor a verdict. Raises InvalidInput."""
    found = dict(data) if isinstance(data, dict) else data
    measured = found.pop("measured", None) if isinstance(found, dict) else None
    pb = _WHOLE_RESULT.read(found, path)
    if not pb.type or not pb.kind:
        raise InvalidInput(path, "no `type` or no `kind`", "a result with both")
    pb.name = pb.name or pb.type
    if not pb.verdict:
        pb.verdict = result_pb2.VERDICT_PASSED if pb.success else result_pb2.VERDICT_FAILED
    if pb.kind != evaluator_pb2.EVALUATOR_KIND_METRIC:
        value = pb.value
        if pb.HasField("value") and not pb.HasField("score") and pb.verdict != result_pb2.VERDICT_ERROR:
            if 0 <= value <= 1:
                pb.score = value
            elif measured is None:
                measured = value
        pb.ClearField("value")
        if measured is not None:
            NUMBER.fill(pb, "value", measured, f"{path}.measured")
    return pb


_EVALUATION_FIELDS: Final = {
    "success": FLAG,
    "score": NUMBER,
    "reason": TEXT,
    "results": repeated(_result_from_json, result_to_json, result_schema()),
    "metrics": NUMBER_MAP,
    "verdict": _VERDICT,
    "min_score": NUMBER,
    "mean_score": NUMBER,
    "warnings": TEXTS,
}
_MORE_OF_AN_EVALUATION: Final = {
    "results": repeated(_result_from_json, _whole_result_to_json, result_schema(whole=True)),
    **dict.fromkeys(("passed_count", "failed_count", "error_count", "skipped_count"), COUNT),
    "duration": MILLISECONDS,
    "start_time": TIME,
    **_SPENT,
}
_EVALUATION: Final = Shape(
    result_pb2.AggregatedEvaluation,
    _EVALUATION_FIELDS | _MORE_OF_AN_EVALUATION,
    renamed=_IN_MS | {"results": "evaluator_results"},
    always=("success", "reason"),
)
_SHORT_EVALUATION: Final = Shape(
    result_pb2.AggregatedEvaluation,
    _EVALUATION_FIELDS,
    renamed={"results": "evaluator_results"},
    always=("success", "reason"),
    title="Evaluation",
)
_TURN: Final = Shape(
    run_service_pb2.RunTurn,
    {
        "turn": COUNT,
        "first_message": COUNT,
        "message_count": COUNT,
        "is_final": FLAG,
        "latency": MILLISECONDS,
        "time_to_first_token": MILLISECONDS,
        "model": TEXT,
        **_SPENT,
        "evaluation": nested(_EVALUATION),
    },
    renamed=_IN_MS,
    always=("turn", "first_message", "message_count"),
)
_CRITERIA: Final = Shape(
    run_service_pb2.CriteriaEvaluation,
    {"success_met": FLAG, "failure_met": FLAG, "confidence": NUMBER, "reasoning": TEXT},
    always=("success_met", "failure_met", "confidence", "reasoning"),
)
_JUDGED: Final = Shape(
    run_service_pb2.RunResult, {"success": FLAG, "score": NUMBER, "reason": TEXT}, always=("success",)
)


def _output(*, whole: bool) -> Any:
    write = _whole_result_to_json if whole else result_to_json
    shape = Shape(
        run_service_pb2.RunOutput,
        {
            "average_latency": MILLISECONDS,
            "total_latency": MILLISECONDS,
            "message_count": COUNT,
            "max_messages_reached": FLAG,
            "evaluation": nested(_CRITERIA),
            "evaluator_results": repeated(_result_from_json, write, result_schema(whole=whole)),
            "metrics": NUMBER_MAP,
        },
        renamed=_IN_MS,
        always=("message_count",),
        title="WholeOutput" if whole else "Output",
    )
    return nested(shape)


_RUN_FIELDS: Final = {
    "id": TEXT,
    "experiment_id": TEXT,
    "scenario_id": TEXT,
    "persona_id": TEXT,
    "connector_id": TEXT,
    "execution_id": LONG_COUNT,
    "status": choice(*STATUSES),
    "start_time": TIME,
    "complete_time": TIME,
    "thread_id": TEXT,
    "messages": MESSAGES,
    "output": _output(whole=False),
    "result": nested(_JUDGED),
    "create_time": TIME,
    "update_time": TIME,
    "verdict": _VERDICT,
}
_MORE_OF_A_RUN: Final = {
    "output": _output(whole=True),
    "attempt": COUNT,
    "turn_count": COUNT,
    **_SPENT,
    "turns": repeated(_TURN.read, _TURN.write, _TURN.schema()),
    "scenario": nested(SCENARIO),
    "persona": nested(PERSONA),
    "connector": nested(CONNECTOR),
}
_RUN_KEYS: Final = {
    "experiment_id": "eval_id",
    "start_time": "started_at",
    "complete_time": "completed_at",
    "create_time": "created_at",
    "update_time": "updated_at",
}
_RUN: Final = Shape(run_service_pb2.Run, _RUN_FIELDS, renamed=_RUN_KEYS, always=("id",))
_WHOLE_RUN: Final = Shape(
    run_service_pb2.Run,
    _RUN_FIELDS | _MORE_OF_A_RUN,
    renamed=_RUN_KEYS,
    always=("id",),
    ignored=("latency_ms", "metadata"),  # the latency is also in `output`
    aliases={"tokens_usage": "token_usage", "experiment_id": "experiment_id"},
    title="WholeRun",
)


_ERROR_KEYS: Final = {"error": "message", "error_code": "code"}


def run_to_json(pb: run_service_pb2.Run, *, whole: bool = False) -> dict[str, Any]:
    """Convert a run. whole: with its turns and all other data, for export."""
    data = (_WHOLE_RUN if whole else _RUN).write(pb)
    data.setdefault("messages", [])
    if pb.output.HasField("total_latency"):
        data["latencyMs"] = data["output"]["totalLatencyMs"]
    if pb.verdict == result_pb2.VERDICT_ERROR:
        data["status"] = "error"
        data.setdefault("error", pb.result.reason or "no verdict")
    if pb.HasField("error"):
        data["error"] = pb.error.message or pb.error.code
        if whole:
            data["errorCode"] = pb.error.code
    return data


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of the data of `run_to_json` without `whole`."""
    schema = _RUN.schema()
    more = {"latencyMs": MILLISECONDS.schema, "error": TEXT.schema}
    return schema | {
        "properties": schema["properties"] | more,
        "required": ["id", "status", "messages", "createdAt", "updatedAt"],
    }


def run_from_json(data: Any, path: str = "") -> run_service_pb2.Run:
    """Convert the JSON data of a run, from `run_to_json` or EvalStudio, to a message. Raises InvalidInput."""
    found = dict(data) if isinstance(data, dict) else data
    error = {}
    if isinstance(found, dict):
        keys = [key for key in found if isinstance(key, str) and snake(key) in _ERROR_KEYS]
        error = {key: found.pop(key) for key in keys}
    pb = _WHOLE_RUN.read(found, path)
    for name, value in read_keys(error, _ERROR_KEYS, path).items():
        if text(value, join(path, "error")):
            setattr(pb.error, name, value)
    if pb.HasField("error") and not pb.error.code:
        pb.error.code = "UNKNOWN"
    if not pb.verdict and pb.status == run_service_pb2.RUN_STATUS_ERROR:
        pb.verdict = result_pb2.VERDICT_ERROR
    elif not pb.verdict and pb.status == run_service_pb2.RUN_STATUS_COMPLETED and pb.HasField("result"):
        pb.verdict = result_pb2.VERDICT_PASSED if pb.result.success else result_pb2.VERDICT_FAILED
    return pb


def turn_to_json(pb: run_service_pb2.RunTurn) -> dict[str, Any]:
    """Convert a turn, with its complete results."""
    return _TURN.write(pb)


def turn_schema() -> dict[str, Any]:
    """Return the JSON Schema of a turn."""
    return _TURN.schema()


def evaluation_to_json(pb: result_pb2.AggregatedEvaluation, evaluation_id: str = "") -> dict[str, Any]:
    """Convert an evaluation, with the short form of its results. evaluation_id: "" for none, as in a batch."""
    data = _SHORT_EVALUATION.write(pb)
    data.setdefault("evaluatorResults", [])
    data.setdefault("metrics", {})
    return data | ({"evaluationId": evaluation_id} if evaluation_id else {})


def evaluation_schema() -> dict[str, Any]:
    """Return the JSON Schema of an evaluation."""
    schema = _SHORT_EVALUATION.schema()
    return schema | {"properties": schema["properties"] | {"evaluationId": TEXT.schema}}


def event_to_json(pb: run_service_pb2.WatchRunResponse) -> dict[str, Any]:
    """Convert an event of a run: `sequence`, `event` (its kind), and the data of that kind."""
    kind = pb.WhichOneof("event")
    data: dict[str, Any] = {"sequence": pb.sequence, "event": kind}
    if kind == "message":
        data |= {"index": pb.message.index, "message": message_to_json(pb.message.message)}
    elif kind == "result":
        data |= {"turn": pb.result.turn, "result": result_to_json(pb.result.result)}
    elif kind == "turn":
        data |= {"turn": _TURN.write(pb.turn)}
    elif kind == "status":
        data |= {"status": STATUSES[pb.status.status - 1], "attempt": pb.status.attempt}
    elif kind == "end":
        data |= {"run": run_to_json(pb.end)}
    return data
