"""Python and JSON data to the messages that are sent. With the clients the only file that knows generated code.

`parse_messages_json` and `dict_to_struct` are the parts that a server needs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .errors import InvalidInput
from .fields import duration_to_pb, flag, join, read_keys, shown, snake, text, whole
from .messages import fill_message, fill_messages, parse_messages_json
from .responses import read_response, read_usage
from .spec import Options, OptionsLike, Spec, SpecLike, specs
from .structs import MAX_DEPTH, dict_to_struct, value_to_pb
from .v1 import catalog_service_pb2, context_pb2, evaluation_service_pb2, evaluator_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from google.protobuf.struct_pb2 import Struct

    from .evaluator import EvaluatorDefinition

    Specs = RepeatedCompositeFieldContainer[evaluator_pb2.EvaluatorSpec]

# What a server needs of this; the clients import the rest by name.
__all__ = ["dict_to_struct", "parse_messages_json", "spec_to_pb", "type_to_pb"]

_INT32_MAX: Final = (1 << 31) - 1


class TurnData(NamedTuple):
    """Everything that can be said about a turn, as callers write it. See `Turn`."""

    messages: Any = ()
    response: Any = None
    turn_messages: Any = None
    latency_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    usage: Any = None
    cost: tuple[str, float] | None = None
    model: str | None = None
    finish_reason: str | None = None
    invocation_metadata: Any = None
    start_time: str | None = None
    expected: Any = None
    scenario: Any = None
    persona: Any = None
    number: int | None = None
    is_final: bool = False
    attempt: int | None = None
    conversation_id: str | None = None
    run_id: str | None = None
    response_id: str | None = None
    run_duration_seconds: float | None = None
    metadata: Any = None


def turn_to_pb(data: TurnData) -> context_pb2.EvaluatorContext:
    """The context that is sent. Raises InvalidInput."""
    pb = context_pb2.EvaluatorContext()
    invocation = pb.last_invocation
    usage, model, finish_reason, response_id = (
        data.usage,
        data.model,
        data.finish_reason,
        data.response_id,
    )
    if data.response is None:
        _fill_conversation(data.messages, pb)
    else:
        answered = read_response(data.response)
        usage = answered.usage if usage is None else usage
        model = answered.model if model is None else model
        finish_reason = answered.finish_reason if finish_reason is None else finish_reason
        response_id = answered.response_id if response_id is None else response_id
        if isinstance(data.messages, str | bytes):
            parse_messages_json(data.messages, pb.messages, max_messages=_INT32_MAX)
        else:
            fill_messages(data.messages, pb.messages)
        fill_messages(answered.messages, pb.messages, "response")
    if isinstance(data.turn_messages, str | bytes):
        invocation.messages_json = _json_list(data.turn_messages, "turn_messages")
    elif data.turn_messages is not None:
        fill_messages(data.turn_messages, invocation.messages, "turn_messages")
    if data.latency_seconds is not None:
        duration_to_pb(data.latency_seconds, invocation.latency)
    if data.time_to_first_token_seconds is not None:
        duration_to_pb(data.time_to_first_token_seconds, invocation.time_to_first_token)
    if usage is not None:
        for name, count in read_usage(usage).items():
            setattr(invocation.token_usage, name, count)
    if data.cost is not None:
        invocation.cost.currency_code, invocation.cost.amount = data.cost
    if model is not None:
        invocation.model = text(model, "model")
    if data.invocation_metadata is not None:
        _fill_struct(data.invocation_metadata, invocation.metadata, "last_invocation.metadata")
    if finish_reason is not None:
        invocation.metadata.fields["finish_reason"].string_value = text(finish_reason, "finish_reason")
    if data.start_time is not None:
        try:
            invocation.start_time.FromJsonString(data.start_time)
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput(
                "start_time", shown(data.start_time), 'a time such as "2026-01-31T12:00:00Z"'
            ) from None
    _fill_expected(data.expected, pb)
    _fill_setting(data, pb)
    if response_id is not None:
        pb.correlation.response_id = text(response_id, "response_id")
    return pb


def typed(context: context_pb2.EvaluatorContext) -> context_pb2.EvaluatorContext:
    """The context with its messages as messages, not as JSON text, as a server hands it to evaluators."""
    invocation = context.last_invocation
    if not context.messages_json and not invocation.messages_json:
        return context
    parsed = context_pb2.EvaluatorContext()
    parsed.CopyFrom(context)
    for source, target in ((context, parsed), (invocation, parsed.last_invocation)):
        if source.messages_json:
            parse_messages_json(source.messages_json, target.messages, max_messages=_INT32_MAX)
            target.ClearField("messages_json")
    return parsed


def _fill_conversation(messages: Any, pb: context_pb2.EvaluatorContext) -> None:
    if isinstance(messages, str | bytes):
        pb.messages_json = _json_list(messages, "messages")
    else:
        fill_messages(messages, pb.messages)


def _json_list(data: str | bytes, path: str) -> str:
    """JSON text of a list, not parsed: the server does that."""
    try:
        content = data.decode() if isinstance(data, bytes) else text(data, path)
    except UnicodeDecodeError as problem:
        raise InvalidInput(path, f"no UTF-8 at byte {problem.start}", "JSON text") from None
    if not content.lstrip().startswith("["):
        raise InvalidInput(path, shown(content), "a list of messages, or the JSON text of one")
    return content


def _fill_struct(data: Any, struct: "Struct", path: str) -> None:
    if not isinstance(data, Mapping):
        raise InvalidInput(path, shown(data), "an object")
    try:
        dict_to_struct(data, struct)
    except InvalidInput as problem:
        raise problem.below(path) from None


_EXPECTED_KEYS: Final = {name: name for name in ("text", "data", "messages", "tool_calls")}
_SCENARIO_KEYS: Final = {
    name: name
    for name in (
        "name",
        "instructions",
        "max_messages",
        "success_criteria",
        "failure_criteria",
        "failure_criteria_mode",
    )
}
_PERSONA_KEYS: Final = {name: name for name in ("name", "description")}
_FAILURE_MODES: Final = {
    "every_turn": context_pb2.FAILURE_CRITERIA_MODE_EVERY_TURN,
    "on_max_messages": context_pb2.FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES,
}


def _fill_expected(expected: Any, pb: context_pb2.EvaluatorContext) -> None:
    if expected is None:
        return
    if isinstance(expected, str):
        pb.expected.text = text(expected, "expected")
        return
    found = read_keys(expected, _EXPECTED_KEYS, "expected")
    if "text" in found:
        pb.expected.text = text(found["text"], "expected.text")
    if "data" in expected:  # null is data too
        try:
            value_to_pb(expected["data"], pb.expected.data)
        except InvalidInput as problem:
            raise problem.below("expected.data") from None
    if "messages" in found:
        fill_messages(found["messages"], pb.expected.messages, "expected.messages")
    if "tool_calls" in found:
        message = {"role": "assistant", "tool_calls": found["tool_calls"]}
        try:
            fill_message(message, pb.expected.messages.add(), MAX_DEPTH - 2)
        except InvalidInput as problem:
            raise problem.below("expected") from None


def _fill_setting(data: TurnData, pb: context_pb2.EvaluatorContext) -> None:
    """What surrounds the turn."""
    if data.scenario is not None:
        _fill_scenario(data.scenario, pb.scenario)
    if data.persona is not None:
        named = {"name": data.persona} if isinstance(data.persona, str) else data.persona
        pb.persona.SetInParent()
        for key, value in read_keys(named, _PERSONA_KEYS, "persona").items():
            setattr(pb.persona, key, text(value, f"persona.{key}"))
    if data.number is not None:
        pb.turn = whole(data.number, "number", largest=_INT32_MAX)
    pb.is_final = flag(data.is_final, "is_final")
    if data.attempt is not None:
        pb.attempt = whole(data.attempt, "attempt", largest=_INT32_MAX)
    if data.conversation_id is not None:
        pb.correlation.conversation_id = text(data.conversation_id, "conversation_id")
    if data.run_id is not None:
        pb.correlation.run_id = text(data.run_id, "run_id")
    if data.run_duration_seconds is not None:
        duration_to_pb(data.run_duration_seconds, pb.run_duration)
    if data.metadata is not None:
        _fill_struct(data.metadata, pb.metadata, "metadata")


def _fill_scenario(scenario: Any, pb: context_pb2.Scenario) -> None:
    named = {"name": scenario} if isinstance(scenario, str) else scenario
    pb.SetInParent()
    for key, value in read_keys(named, _SCENARIO_KEYS, "scenario").items():
        path = f"scenario.{key}"
        if key == "max_messages":
            pb.max_messages = whole(value, path, largest=_INT32_MAX)
        elif key == "failure_criteria_mode":
            mode = snake(value).removeprefix("failure_criteria_mode_") if isinstance(value, str) else value
            if mode not in _FAILURE_MODES:
                raise InvalidInput(path, shown(value), " or ".join(map(repr, _FAILURE_MODES)))
            pb.failure_criteria_mode = _FAILURE_MODES[mode]
        else:
            setattr(pb, key, text(value, path))


# --- specs and options ---


def spec_to_pb(spec: SpecLike, path: str = "") -> evaluator_pb2.EvaluatorSpec:
    """The spec that is sent. Raises InvalidInput."""
    pb = evaluator_pb2.EvaluatorSpec()
    _fill_spec(Spec.from_dict(spec, path), pb, path)
    return pb


def _fill_spec(spec: Spec, pb: evaluator_pb2.EvaluatorSpec, path: str) -> None:
    pb.type, pb.name, pb.version = spec.type, spec.name, spec.version
    pb.required, pb.negate = spec.required, spec.negate
    if spec.config:
        _fill_struct(spec.config, pb.config, join(path, "config"))
    if spec.when == "final":
        pb.turn_policy = evaluator_pb2.TURN_POLICY_FINAL_TURN
    if spec.shadow:
        pb.enforcement = evaluator_pb2.ENFORCEMENT_SHADOW
    if spec.on_error is not None:
        pb.error_policy = (
            evaluator_pb2.ERROR_POLICY_FAIL_OPEN
            if spec.on_error == "fail_open"
            else evaluator_pb2.ERROR_POLICY_FAIL_CLOSED
        )
    if spec.weight is not None:
        pb.weight = spec.weight
    if spec.threshold is not None:
        pb.threshold = spec.threshold
    if spec.timeout_seconds is not None:
        duration_to_pb(spec.timeout_seconds, pb.timeout)


def fill_specs(evaluators: Iterable[SpecLike], into: "Specs") -> None:
    """Append the specs of a call. Raises InvalidInput that names the one that is wrong."""
    for index, spec in enumerate(specs(evaluators)):
        _fill_spec(spec, into.add(), f"evaluators[{index}]")


def fill_options(options: OptionsLike | None, pb: evaluation_service_pb2.EvaluateOptions) -> None:
    """Fill in the options of a call. Raises InvalidInput."""
    if options is None:
        return
    options = Options.from_dict(options)
    pb.fail_fast, pb.max_concurrency = options.fail_fast, options.max_concurrency
    pb.skip_auto_evaluators, pb.skip_cache = options.skip_auto_evaluators, options.skip_cache
    pb.include_progress = options.include_progress
    if options.timeout_seconds is not None:
        duration_to_pb(options.timeout_seconds, pb.timeout)
    if options.aggregation == "weighted_mean":
        pb.aggregation = evaluation_service_pb2.AGGREGATION_POLICY_WEIGHTED_MEAN
    if options.threshold is not None:
        pb.threshold = options.threshold
    if options.criteria_policy == "evaluators_only":
        pb.criteria_policy = evaluation_service_pb2.CRITERIA_POLICY_EVALUATORS_ONLY


# --- requests ---


def _fill_labels(labels: Mapping[str, str] | None, into: Any) -> None:
    for key, value in (labels or {}).items():
        into[text(key, "labels")] = text(value, f"labels.{key}")


def evaluate_request(
    context: context_pb2.EvaluatorContext,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    request_id: str,
    into: evaluation_service_pb2.EvaluateRequest | None = None,
) -> evaluation_service_pb2.EvaluateRequest:
    """The request of `Evaluate`. into: the message to fill, else a new one."""
    pb = evaluation_service_pb2.EvaluateRequest() if into is None else into
    pb.request_id = text(request_id, "request_id")
    pb.context.CopyFrom(context)
    fill_specs(evaluators, pb.evaluators)
    fill_options(options, pb.options)
    _fill_labels(labels, pb.labels)
    return pb


def unary_request(
    context: context_pb2.EvaluatorContext,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    request_id: str,
) -> evaluation_service_pb2.EvaluateUnaryRequest:
    """The request of `EvaluateUnary`."""
    pb = evaluation_service_pb2.EvaluateUnaryRequest()
    evaluate_request(context, evaluators, options, labels, request_id, pb.request)
    return pb


def session_open(
    base: context_pb2.EvaluatorContext | None,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
) -> evaluation_service_pb2.EvaluateSessionRequest:
    """The first frame of a session."""
    pb = evaluation_service_pb2.EvaluateSessionRequest()
    pb.open.SetInParent()
    if base is not None:
        pb.open.base_context.CopyFrom(base)
    fill_specs(evaluators, pb.open.evaluators)
    fill_options(options, pb.open.options)
    _fill_labels(labels, pb.open.labels)
    return pb


def session_turn(
    turn_id: int, context: context_pb2.EvaluatorContext
) -> evaluation_service_pb2.EvaluateSessionRequest:
    """One turn of a session. Raises InvalidInput for what only a whole session can have."""
    for name in ("scenario", "persona", "metadata"):
        if context.HasField(name):
            raise InvalidInput(name, "given for one turn of a session", "it in the session's base")
    pb = evaluation_service_pb2.EvaluateSessionRequest()
    turn = pb.turn
    turn.turn_id = turn_id
    turn.is_final = context.is_final
    turn.last_invocation.CopyFrom(context.last_invocation)
    if context.messages_json:
        turn.new_messages_json = context.messages_json
    elif context.messages:
        turn.new_messages.extend(context.messages)
    else:
        turn.new_messages.extend(context.last_invocation.messages)
        turn.new_messages_json = context.last_invocation.messages_json
    if context.HasField("expected"):
        turn.expected.CopyFrom(context.expected)
    if context.HasField("run_duration"):
        turn.run_duration.CopyFrom(context.run_duration)
    return pb


def batch_open(
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    *,
    brief: bool,
) -> evaluation_service_pb2.BatchOpen:
    """What the items of a batch share."""
    pb = evaluation_service_pb2.BatchOpen(brief=brief)
    fill_specs(evaluators, pb.evaluators)
    fill_options(options, pb.options)
    _fill_labels(labels, pb.labels)
    return pb


def batch_item(
    item_id: str, context: context_pb2.EvaluatorContext, evaluators: Iterable[SpecLike]
) -> evaluation_service_pb2.BatchItem:
    """One item of a batch. Raises InvalidInput."""
    pb = evaluation_service_pb2.BatchItem(item_id=item_id, context=context)
    fill_specs(evaluators, pb.evaluators)
    return pb


def batch_request(
    opening: evaluation_service_pb2.BatchOpen | None, items: Iterable[evaluation_service_pb2.BatchItem]
) -> evaluation_service_pb2.EvaluateBatchRequest:
    """One message of a batch."""
    return evaluation_service_pb2.EvaluateBatchRequest(open=opening, items=items)


def validate_request(evaluators: Iterable[SpecLike]) -> evaluation_service_pb2.ValidateSpecsRequest:
    """The request of `ValidateSpecs`."""
    pb = evaluation_service_pb2.ValidateSpecsRequest()
    fill_specs(evaluators, pb.evaluators)
    return pb


def list_types_request(kind: Any, page_token: str) -> catalog_service_pb2.ListEvaluatorTypesRequest:
    """The request of `ListEvaluatorTypes`. kind: 0 for all."""
    # 1,000: the largest page that the contract allows, so that one call is enough.
    return catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1000, page_token=page_token, kind=kind)


def get_type_request(name: str, version: str) -> catalog_service_pb2.GetEvaluatorTypeRequest:
    """The request of `GetEvaluatorType`."""
    return catalog_service_pb2.GetEvaluatorTypeRequest(type=name, version=version)


def watch_types_request(after_revision: int) -> catalog_service_pb2.WatchEvaluatorTypesRequest:
    """The request of `WatchEvaluatorTypes`."""
    return catalog_service_pb2.WatchEvaluatorTypesRequest(after_revision=after_revision)


# --- evaluators ---


def type_to_pb(definition: "EvaluatorDefinition") -> evaluator_pb2.EvaluatorType:
    """An evaluator as an entry of a catalogue, without what only a server knows of it."""
    pb = evaluator_pb2.EvaluatorType(
        type=definition.type,
        version=definition.version,
        label=definition.label,
        description=definition.description,
        kind=int(definition.kind),  # type: ignore[arg-type]
        auto=definition.auto,
        config_schema_json=definition.config_schema_json
        or json.dumps(definition.config_schema, ensure_ascii=False, separators=(",", ":")),
        deterministic=definition.deterministic,
        final_turn_only=definition.final_turn_only,
        # The contract has names alone: one that implies config would mean something else elsewhere.
        aliases=sorted(alias for alias, implied in definition.aliases.items() if not implied),
        required_data=definition.required_data,
    )
    metric = definition.metric
    if metric is not None:
        pb.metric.unit = metric.unit
        for name in ("higher_is_better", "minimum", "maximum"):
            value = getattr(metric, name)
            if value is not None:
                setattr(pb.metric, name, value)
        pb.metric.bucket_bounds.extend(metric.bucket_bounds)
    return pb


def stubs(channel: Any) -> tuple[Any, Any]:
    """EvaluationService and CatalogService over a channel of grpc or grpc.aio."""
    # Here, because who only converts, as the server's engine does, needs no gRPC.
    from .v1 import catalog_service_pb2_grpc, evaluation_service_pb2_grpc

    return (
        evaluation_service_pb2_grpc.EvaluationServiceStub(channel),
        catalog_service_pb2_grpc.CatalogServiceStub(channel),
    )


# --- the details of a status ---


class StatusDetails(NamedTuple):
    """The google.rpc details of a status, as plain data. violations: (field, description)."""

    reason: str = ""
    metadata: Mapping[str, str] = {}
    violations: Sequence[tuple[str, str]] = ()
    retry_after_seconds: float | None = None


def read_status(trailing_metadata: Iterable[Any]) -> StatusDetails:
    """ErrorInfo, BadRequest and RetryInfo out of a call's trailing metadata; empty where there are none."""
    data = next((value for key, value in trailing_metadata if key == "grpc-status-details-bin"), None)
    if data is None:
        return StatusDetails()
    # Only here: loading them costs as much as the rest of this module, and most calls go well.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    found: dict[str, Any] = {}
    try:
        details = status_pb2.Status.FromString(data).details
        for detail in details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                found |= {"reason": info.reason, "metadata": dict(info.metadata)}
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                request = error_details_pb2.BadRequest.FromString(detail.value)
                found["violations"] = [(field.field, field.description) for field in request.field_violations]
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                found["retry_after_seconds"] = delay.seconds + delay.nanos / 1e9
    except DecodeError:
        pass  # somebody else's trailer: the status and its text still stand
    return StatusDetails(**found)
