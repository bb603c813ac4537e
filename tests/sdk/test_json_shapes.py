"""Scenarios, personas, connectors, experiments and runs keep what they say between JSON and the contract."""

import json
import math
from typing import Any

import pytest

from evald.convert.resources import CONNECTOR, EXPERIMENT, PERSONA, SCENARIO
from evald.convert.runs import event_to_json, run_from_json, run_to_json
from evald.errors import InvalidInput
from evald.v1 import message_pb2, result_pb2, run_service_pb2

CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"day": 5}'}}
MESSAGES = [
    {"role": "user", "content": "Hi", "id": "m1"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "ok", "tool_call_id": "c1", "name": "book"},
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}], "metadata": {"a": [1, 2.5, None]}},
    {"role": "assistant", "content": "", "refusal": "no"},
]
TIMES = {"createdAt": "2026-11-22T04:48:28.684Z", "updatedAt": "2026-11-22T04:48:29.000Z"}

WHOLE: list[tuple[Any, dict[str, Any]]] = [
    (
        SCENARIO,
        {
            "id": "s",
            "name": "Booking flow",
            "instructions": "You want a slot.",
            "goal": "A slot on Friday.",
            "messages": MESSAGES,
            "maxMessages": 6,
            "successCriteria": "",
            "failureCriteria": "Gives up.",
            "failureCriteriaMode": "every_turn",
            "criteriaPolicy": "evaluatorsOnly",
            "onAssertionFailure": "continue",
            "evaluators": [
                {"type": "is-json"},
                {"type": "regex", "config": {"pattern": "BK"}, "name": "ref", "when": "final", "weight": 2},
                {"type": "regex", "config": {"pattern": "x"}, "threshold": 0.5, "enforcement": "shadow"},
            ],
            "personaIds": ["p"],
        },
    ),
    (
        PERSONA,
        {
            "id": "p",
            "name": "Maria",
            "description": "In a hurry.",
            "systemPrompt": "Short sentences.",
            "headers": {"X-User": "${USER_ID}"},
            "script": ["Hi", "Friday"],
            "judge": "small",
        },
    ),
    (
        CONNECTOR,
        {
            "id": "c",
            "name": "staging",
            "type": "langgraph",
            "baseUrl": "http://127.0.0.1:2024",
            "headers": {"Authorization": "Bearer ${KEY}"},
            "config": {"assistantId": "agent", "deep": {"n": [1, 0.5]}},
        },
    ),
    (
        EXPERIMENT,
        {"id": "e", "name": "nightly", "scenarioIds": ["s"], "personaIds": ["p"], "connectorId": "c"},
    ),
]


@pytest.mark.parametrize(("shape", "data"), WHOLE, ids=[data["name"] for _, data in WHOLE])
def test_what_is_read_is_written_again(shape: Any, data: dict[str, Any]) -> None:
    message = shape.read(data)
    assert shape.write(message) == data
    assert {field.name for field, _ in message.ListFields()} == {
        field.name for field in message.DESCRIPTOR.fields if not field.name.endswith("_time")
    }


@pytest.mark.parametrize(("shape", "data"), WHOLE, ids=[data["name"] for _, data in WHOLE])
def test_what_a_server_gave_can_be_put_back(shape: Any, data: dict[str, Any]) -> None:
    """An update leaves id and times alone, null is absent, and snake case says the same."""
    message = shape.read(data)
    message.create_time.FromJsonString(TIMES["createdAt"])
    message.update_time.FromJsonString(TIMES["updatedAt"])
    assert shape.write(message) == data | TIMES
    assert shape.read(data | TIMES) == message
    assert not {"id", "create_time", "update_time"} & set(shape.given(data | TIMES))
    assert shape.read(data | {"id": None}) == shape.read({**data, "id": ""})
    snake = {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): one for key, one in data.items()}
    assert shape.read(snake) == shape.read(data)


def test_an_update_changes_the_keys_it_has_and_null_is_none() -> None:
    given = SCENARIO.given({"successCriteria": "", "evaluators": [], "goal": None, "updatedAt": "x"})
    assert given == ["success_criteria", "evaluators"]


@pytest.mark.parametrize(
    ("shape", "data", "problem"),
    [
        (SCENARIO, {"maxMesages": 3}, "maxMesages: unknown key; wanted 'max_messages'"),
        (SCENARIO, {"maxMessages": "3"}, "maxMessages: got '3'"),
        (SCENARIO, {"evaluators": [{"type": "regex", "confg": {}}]}, "evaluators[0].confg: unknown key"),
        (SCENARIO, {"evaluators": {"type": "regex"}}, "evaluators: got an object"),
        (SCENARIO, {"messages": [{"content": "Hi"}]}, "messages[0].role: missing"),
        (SCENARIO, {"criteriaPolicy": "none"}, "wanted 'both' or 'evaluatorsOnly'"),
        (SCENARIO, {"name": "A", "personaIds": [1]}, "personaIds[0]: got 1"),
        (PERSONA, {"headers": {"X": 1}}, "headers.X: got something else; wanted text"),
        (CONNECTOR, {"config": []}, "config: got []"),
        (SCENARIO, {"evaluators": [{"type": "a", "weight": 10**400}]}, "evaluators[0].weight: got 1000"),
        (
            SCENARIO,
            {"evaluators": [{"type": "a", "timeoutMs": 10**400}]},
            "evaluators[0].timeout_ms: got 1000",
        ),
        (
            SCENARIO,
            {"evaluators": [{"type": "a", "timeoutMs": 1e300}]},
            "evaluators[0].timeout_ms: got 1e+297",
        ),
        (SCENARIO, {"maxMessages": float("inf")}, "maxMessages: got inf"),
        (SCENARIO, {"maxMessages": 10**5000}, "maxMessages: got a number of thousands of digits"),
        (EXPERIMENT, [], "got [] (list); wanted an object"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(shape: Any, data: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        shape.read(data)
    assert problem in str(caught.value)


def whole_run() -> run_service_pb2.Run:
    """A run with every field set."""
    results = [
        result_pb2.EvaluationResult(
            index=1,
            name="ref",
            type="regex",
            version="1",
            kind="EVALUATOR_KIND_ASSERTION",
            enforcement="ENFORCEMENT_ENFORCED",
            verdict="VERDICT_FAILED",
            value=3.5,
            score=0.25,
            label="Regex",
            reason="no",
            pending=True,
            cached=True,
            instance_id="i",
            provenance=result_pb2.Provenance(
                config_sha256="c0", judge_models=["m"], prompt_sha256="d0", calibration_card="cal-1"
            ),
            checks=[result_pb2.Check(text="a", met=False, evidence="b")],
        ),
        result_pb2.EvaluationResult(
            name="calls",
            type="tool-call-count",
            kind="EVALUATOR_KIND_METRIC",
            verdict="VERDICT_PASSED",
            value=-2,
            success=True,
            label="Calls",
        ),
        result_pb2.EvaluationResult(
            name="tone",
            type="llm-judge",
            kind="EVALUATOR_KIND_ASSERTION",
            verdict="VERDICT_ERROR",
            error=result_pb2.EvaluationError(
                code="TIMEOUT",
                category="CATEGORY_INFRASTRUCTURE",
                message="late",
                retryable=True,
                metadata={"ms": "2"},
            ),
        ),
    ]
    results[0].metadata.update({"found": [1, "x"]})
    results[0].raw_request.update({"model": "m"})
    results[0].duration.FromMicroseconds(1500)
    results[0].start_time.FromJsonString("2026-11-22T04:48:28.684Z")
    results[0].token_usage.input_tokens = 7
    results[0].cost.amount = 0.5
    run = run_service_pb2.Run(
        id="r",
        experiment_id="e",
        execution_id=4,
        scenario_id="s",
        persona_id="p",
        connector_id="c",
        status=run_service_pb2.RUN_STATUS_COMPLETED,
        verdict=result_pb2.VERDICT_FAILED,
        turn_count=1,
        thread_id="t",
        attempt=2,
        messages=[message_pb2.ChatMessage(role="user", text="Hi")],
        scenario=SCENARIO.read(WHOLE[0][1]),
        persona=PERSONA.read(WHOLE[1][1]),
        connector=CONNECTOR.read(WHOLE[2][1]),
    )
    run.error.code, run.error.message = "CONNECTOR_TIMEOUT", "nothing after 30 s"
    run.result.success, run.result.score, run.result.reason = False, 0.25, "no"
    run.token_usage.input_tokens, run.token_usage.total_tokens = 10, 12
    run.cost.currency_code, run.cost.amount = "USD", 0.01
    for name in ("create_time", "start_time", "complete_time", "update_time"):
        getattr(run, name).FromJsonString("2026-11-22T04:48:28.684Z")
    output = run.output
    output.average_latency.FromMilliseconds(6)
    output.total_latency.FromMicroseconds(12_500)
    output.message_count, output.max_messages_reached = 1, True
    output.evaluation.reasoning, output.evaluation.confidence = "so", 0.75
    output.metrics["calls"] = 2
    output.evaluator_results.extend(results)
    turn = run.turns.add(turn=1, message_count=1, is_final=True, model="m")
    turn.latency.FromMilliseconds(12)
    turn.time_to_first_token.FromMilliseconds(2)
    turn.token_usage.output_tokens = 3
    turn.cost.amount = 1
    evaluation = turn.evaluation
    evaluation.verdict, evaluation.reason, evaluation.score = result_pb2.VERDICT_FAILED, "no", 0.25
    evaluation.failed_count, evaluation.error_count = 1, 1
    evaluation.duration.FromMilliseconds(3)
    evaluation.metrics["calls"] = -2
    evaluation.warnings.append("careful")
    evaluation.results.extend(results)
    return run


def test_an_exported_run_is_the_run() -> None:
    run = whole_run()
    line = json.dumps(run_to_json(run, whole=True))
    assert run_from_json(json.loads(line)) == run
    missing = {field.name for field in run.DESCRIPTOR.fields} - {field.name for field, _ in run.ListFields()}
    assert missing == {"last_sequence"}  # of the server that stores it


def test_lists_show_runs_in_the_shape_of_evalstudio() -> None:
    data = run_to_json(whole_run())
    assert list(data) == [
        *("id", "evalId", "scenarioId", "personaId", "connectorId", "executionId", "status", "startedAt"),
        *("completedAt", "threadId", "messages", "output", "result", "createdAt", "updatedAt", "verdict"),
        *("latencyMs", "error"),
    ]
    assert data["latencyMs"] == 12.5
    assert data["error"] == "nothing after 30 s"
    regex, calls, judge = data["output"]["evaluatorResults"]
    assert (regex["value"], regex["measured"], regex["score"]) == (0.25, 3.5, 0.25)
    assert (calls["value"], "measured" in calls) == (-2, False)
    assert (judge["verdict"], judge["error"]["code"], "value" in judge) == ("ERROR", "TIMEOUT", False)
    assert not {"checks", "rawRequest"} & set(regex)


def test_a_run_that_broke_never_reads_as_a_failed_one() -> None:
    run = run_service_pb2.Run(id="r", status=run_service_pb2.RUN_STATUS_COMPLETED, verdict="VERDICT_ERROR")
    assert run_to_json(run)["status"] == "error"


def test_runs_of_evalstudio_are_read() -> None:
    run = run_from_json(
        {
            "id": "r",
            "scenarioId": "s",
            "status": "completed",
            "latencyMs": 12,
            "messages": [{"role": "user", "content": "Hi"}],
            "output": {
                "avgLatencyMs": 6,
                "totalLatencyMs": 12,
                "messageCount": 2,
                "evaluatorResults": [
                    {
                        "type": "min-links",
                        "label": "Min Links",
                        "kind": "assertion",
                        "success": False,
                        "value": 0.5,
                        "reason": "1 link",
                    }
                ],
            },
            "result": {"success": False, "score": 0.5, "reason": "Evaluator assertion failed."},
            **TIMES,
        }
    )
    assert run.verdict == result_pb2.VERDICT_FAILED
    (result,) = run.output.evaluator_results
    assert (result.name, result.verdict, result.score) == ("min-links", result_pb2.VERDICT_FAILED, 0.5)
    broken = run_from_json({"id": "r", "status": "error", "error": "fetch failed", "messages": []})
    assert (broken.verdict, broken.error.message) == (result_pb2.VERDICT_ERROR, "fetch failed")
    with pytest.raises(InvalidInput, match="status: got 'chat'"):
        run_from_json({"id": "r", "status": "chat"})


@pytest.mark.parametrize(
    "value", [1e300, 10**400, math.inf, math.nan], ids=["1e300", "10**400", "inf", "nan"]
)
def test_numbers_that_no_field_holds_are_refused_with_their_place(value: float) -> None:
    for data, place in (
        ({"output": {"totalLatencyMs": value}}, "output.totalLatencyMs"),
        ({"output": {"metrics": {"a": -value}}}, "output.metrics.a"),
        ({"result": {"score": value}}, "result.score"),
        ({"executionId": value}, "executionId"),
    ):
        if value == 1e300 and place in ("output.metrics.a", "result.score"):
            continue  # a double holds it
        with pytest.raises(InvalidInput, match=place):
            run_from_json({"id": "r", **data})


def test_numbers_that_json_has_not_are_left_out() -> None:
    run = whole_run()
    run.output.metrics["a"] = math.nan
    run.output.evaluation.confidence = math.inf
    run.scenario.evaluators[1].weight = math.nan
    run.scenario.evaluators[1].config["n"] = -math.inf
    run.cost.amount = math.nan
    run.messages[0].metadata["n"] = math.inf
    run.output.evaluator_results[0].score = run.output.evaluator_results[1].value = math.nan
    run.output.evaluator_results[0].metadata["found"] = [math.nan, 2]
    data = run_to_json(run, whole=True)
    json.dumps(data, allow_nan=False)
    assert "a" not in data["output"]["metrics"]
    assert (data["output"]["evaluation"]["confidence"], data["cost"]["amount"]) == (None, None)
    assert data["output"]["evaluatorResults"][0]["metadata"] == {"found": [None, 2]}
    assert "value" not in data["output"]["evaluatorResults"][1]
    assert run_from_json(data).id == run.id


def test_whole_numbers_of_a_spec_are_plain() -> None:
    scenario = SCENARIO.read({"name": "A", "evaluators": [{"type": "a", "weight": 2.0, "timeoutSeconds": 3}]})
    assert (
        json.dumps(SCENARIO.write(scenario)["evaluators"])
        == '[{"type": "a", "weight": 2, "timeoutSeconds": 3}]'
    )


def test_every_kind_of_event_is_written() -> None:
    kinds = run_service_pb2.WatchRunResponse.DESCRIPTOR.oneofs_by_name["event"].fields
    for field in kinds:
        event = run_service_pb2.WatchRunResponse(sequence=3)
        getattr(event, field.name).SetInParent()
        if field.name == "status":
            event.status.status = run_service_pb2.RUN_STATUS_RUNNING
        data = event_to_json(event)
        assert (data["sequence"], data["event"]) == (3, field.name)
        assert len(data) > 2


def test_a_run_names_its_error_once_or_not_at_all() -> None:
    assert not run_from_json({"id": "r", "error": "", "errorCode": None}).HasField("error")
    assert run_from_json({"id": "r", "error_code": "A"}).error.code == "A"
    with pytest.raises(InvalidInput, match="code is given twice"):
        run_from_json({"id": "r", "errorCode": "A", "error_code": "B"})


def test_an_assertion_value_that_is_no_score_is_what_it_measured() -> None:
    result = {"type": "t", "kind": "assertion", "success": True, "value": 812}
    run = run_from_json({"id": "r", "metadata": {"a": 1}, "output": {"evaluatorResults": [result]}})
    (read,) = run.output.evaluator_results
    assert (read.HasField("score"), read.value) == (False, 812)


def test_experiments_go_by_both_names_and_the_hint_lists_what_is_taken() -> None:
    assert run_from_json({"id": "r", "experimentId": "e"}) == run_from_json({"id": "r", "evalId": "e"})
    with pytest.raises(InvalidInput, match="experiment_id is given twice"):
        run_from_json({"id": "r", "experimentId": "e", "evalId": "e"})
    with pytest.raises(InvalidInput, match="unknown key") as caught:
        SCENARIO.read({"zzz": 1})
    keys = str(caught.value).partition("one of ")[2].split(", ")
    assert "created_at" in keys
    assert "create_time" not in keys
