"""Convert a caller's data about a turn to the context message."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import InvalidInput, errors_below
from ..fields import INT32_MAX, duration_to_pb, flag, int32, read_keys, shown, snake, text
from ..messages import fill_message, fill_messages, parse_messages_json
from ..structs import MAX_DEPTH, check_exact, fill_struct, value_to_pb
from ..turn_tail import settle
from ..v1 import context_pb2

if TYPE_CHECKING:
    from ..shapes import Reading


class TurnData(NamedTuple):
    """The arguments of `Turn`."""

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


# What messages can say about the invocation.
_SAID: Final = ("usage", "model", "finish_reason", "response_id", "latency_seconds")


def turn_to_pb(data: TurnData) -> context_pb2.EvaluatorContext:
    """Convert the arguments of a turn to the context message. Raises InvalidInput."""
    pb = context_pb2.EvaluatorContext()
    invocation = pb.last_invocation
    said = _fill_conversation(data, pb)
    if said is not None:
        # Arguments have priority.
        data = data._replace(**{name: getattr(said, name) for name in _SAID if getattr(data, name) is None})
        if said.metadata:
            fill_struct(said.metadata, invocation.metadata, "metadata")
        if said.new is not None and data.turn_messages is None:
            _fill_turn(pb, said.new)
    if isinstance(data.turn_messages, str | bytes):
        invocation.messages_json = _json_list(data.turn_messages, "turn_messages")
    elif data.turn_messages is not None:
        fill_messages(data.turn_messages, invocation.messages, "turn_messages")
    if data.latency_seconds is not None:
        duration_to_pb(data.latency_seconds, invocation.latency)
    if data.time_to_first_token_seconds is not None:
        duration_to_pb(data.time_to_first_token_seconds, invocation.time_to_first_token)
    if data.usage is not None:
        from ..shapes import read_usage

        for name, count in read_usage(data.usage).items():
            setattr(invocation.token_usage, name, count)
    if data.cost is not None:
        invocation.cost.currency_code, invocation.cost.amount = data.cost
    if data.model is not None:
        invocation.model = text(data.model, "model")
    if data.invocation_metadata is not None:
        fill_struct(data.invocation_metadata, invocation.metadata, "last_invocation.metadata")
    if data.finish_reason is not None:
        invocation.metadata.fields["finish_reason"].string_value = text(data.finish_reason, "finish_reason")
    if data.start_time is not None:
        try:
            invocation.start_time.FromJsonString(data.start_time)
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput(
                "start_time", shown(data.start_time), 'a time such as "2026-01-31T12:00:00Z"'
            ) from None
    if data.expected is not None:
        fill_expected(data.expected, pb.expected)
    _fill_setting(data, pb)
    if data.response_id is not None:
        pb.correlation.response_id = text(data.response_id, "response_id")
    return pb


def typed(context: context_pb2.EvaluatorContext) -> context_pb2.EvaluatorContext:
    """Return the context as a server gives it to evaluators: with JSON text parsed, and settled. Raises InvalidInput."""
    invocation = context.last_invocation
    parsed = context_pb2.EvaluatorContext()
    parsed.CopyFrom(context)
    for source, target in ((context, parsed), (invocation, parsed.last_invocation)):
        if source.messages_json:
            parse_messages_json(source.messages_json, target.messages, max_messages=INT32_MAX)
            target.ClearField("messages_json")
    settle(parsed)
    return parsed


def _fill_conversation(data: TurnData, pb: context_pb2.EvaluatorContext) -> "Reading | None":
    """Fill in the messages and the response. Returns their data about the invocation, or None."""
    messages, response = data.messages, data.response
    if isinstance(messages, str | bytes) and response is None:
        pb.messages_json = _json_list(messages, "messages")
        return None
    if isinstance(messages, str | bytes):
        parse_messages_json(messages, pb.messages, max_messages=INT32_MAX)
        said = None
    else:
        said = fill_messages(messages, pb.messages)
    if response is None:
        return said
    if isinstance(response, str):
        response = {"role": "assistant", "content": response}
    elif isinstance(response, bytes):
        raise InvalidInput("response", shown(response), "text, or the answer as its library gives it")
    before = len(pb.messages)
    answered = fill_messages(response, pb.messages, "response")
    if answered is None or said is None:
        answered = answered or said
    elif answered.new is None:
        from ..shapes import later

        answered = later(said, answered)
    if answered is None or answered.new is None:
        return answered
    if before:
        # The response contains its history, too, which `messages` already has.
        del pb.messages[before : before + answered.new]
        return answered._replace(new=before)
    return answered


def _fill_turn(pb: context_pb2.EvaluatorContext, new: int) -> None:
    """Fill in the messages of the turn, if they are not simply those after the last user message.

    new: index of the first message that the agent's last run added.
    """
    roles = [message.role for message in pb.messages]
    start = new
    while start < len(roles) and roles[start] in ("user", "system", "developer"):
        start += 1
    if "user" in roles[start:] or (start and roles[start - 1] != "user"):
        pb.last_invocation.messages.extend(pb.messages[start:])


def _json_list(data: str | bytes, path: str) -> str:
    """Return the JSON text of a list without parsing it: the server does that. Raises InvalidInput."""
    try:
        content = data.decode() if isinstance(data, bytes) else text(data, path)
    except UnicodeDecodeError as problem:
        raise InvalidInput(path, f"no UTF-8 at byte {problem.start}", "JSON text") from None
    if not content.lstrip().startswith("["):
        raise InvalidInput(path, shown(content), "a list of messages, or the JSON text of one")
    return content


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


def fill_expected(expected: Any, pb: context_pb2.Expected) -> None:
    """Fill in the expected answer. Raises InvalidInput."""
    if isinstance(expected, str):
        pb.text = text(expected, "expected")
        return
    found = read_keys(expected, _EXPECTED_KEYS, "expected")
    if "text" in found:
        pb.text = text(found["text"], "expected.text")
    if "data" in expected:  # null is data too
        with errors_below("expected.data"):
            value_to_pb(expected["data"], pb.data)
        check_exact(expected["data"], "expected.data")
    if "messages" in found:
        fill_messages(found["messages"], pb.messages, "expected.messages")
    if "tool_calls" in found:
        message = {"role": "assistant", "tool_calls": found["tool_calls"]}
        with errors_below("expected"):
            fill_message(message, pb.messages.add(), MAX_DEPTH - 2)


def _fill_setting(data: TurnData, pb: context_pb2.EvaluatorContext) -> None:
    """Fill in scenario, persona, ids, metadata, and the numbers of turn and attempt. Raises InvalidInput."""
    if data.scenario is not None:
        _fill_scenario(data.scenario, pb.scenario)
    if data.persona is not None:
        named = {"name": data.persona} if isinstance(data.persona, str) else data.persona
        pb.persona.SetInParent()
        for key, value in read_keys(named, _PERSONA_KEYS, "persona").items():
            setattr(pb.persona, key, text(value, f"persona.{key}"))
    if data.number is not None:
        pb.turn = int32(data.number, "number")
    pb.is_final = flag(data.is_final, "is_final")
    if data.attempt is not None:
        pb.attempt = int32(data.attempt, "attempt")
    if data.conversation_id is not None:
        pb.correlation.conversation_id = text(data.conversation_id, "conversation_id")
    if data.run_id is not None:
        pb.correlation.run_id = text(data.run_id, "run_id")
    if data.run_duration_seconds is not None:
        duration_to_pb(data.run_duration_seconds, pb.run_duration)
    if data.metadata is not None:
        fill_struct(data.metadata, pb.metadata, "metadata")


def _fill_scenario(scenario: Any, pb: context_pb2.Scenario) -> None:
    named = {"name": scenario} if isinstance(scenario, str) else scenario
    pb.SetInParent()
    for key, value in read_keys(named, _SCENARIO_KEYS, "scenario").items():
        path = f"scenario.{key}"
        if key == "max_messages":
            pb.max_messages = int32(value, path)
        elif key == "failure_criteria_mode":
            mode = snake(value).removeprefix("failure_criteria_mode_") if isinstance(value, str) else ""
            if mode not in _FAILURE_MODES:
                raise InvalidInput(path, shown(value), " or ".join(map(repr, _FAILURE_MODES)))
            pb.failure_criteria_mode = _FAILURE_MODES[mode]
        else:
            setattr(pb, key, text(value, path))
