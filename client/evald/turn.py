"""One turn of an agent, created from a caller's data."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .context import EvaluatorContext
from .convert.context import TurnData, turn_to_pb, typed
from .errors import InvalidInput
from .fields import number, read_keys, seconds, shown, snake, text

if TYPE_CHECKING:
    from .v1 import context_pb2


class Turn:
    """One turn of the agent, with its conversation, metadata and expected answer.

    The evaluated turn consists of the messages after the last user message, unless `turn_messages` is given.
    Omitted values are unknown, not 0. The constructor validates and converts all arguments.

    messages: the conversation, oldest first. Messages in the format of OpenAI or of any framework in
        docs/frameworks.md, as objects or dicts, also mixed; pairs such as ("user", "Hi"); one object with the
        whole conversation, such as a result of OpenAI Agents or Pydantic AI, whose turn is the messages that
        the run added; or the JSON text of a list of messages, which is sent without parsing.
    response: the agent's response, appended to `messages`: a response object of its library or its dict
        (usage, model, finish reason and id are read from it), a message, a list of messages, or plain text.
        If `messages` are given, the history in a result is ignored.
    latency_ms, latency_seconds: time from request to complete response, in one of the two units.
    time_to_first_token_ms: for agents that stream.
    usage: token counts, in any spelling. `usage`, `model` and `finish_reason` override the response's values.
    model: the model that responded.
    finish_reason: reason why the model stopped, for example "stop" or "length".
    cost_usd: cost of the turn in US dollars.
    expected: the expected text, or a mapping with `text`, `data`, `messages` or `tool_calls`.
    scenario: its name, or a mapping with `name`, `instructions`, `max_messages`, `success_criteria`,
        `failure_criteria`, `failure_criteria_mode`.
    persona: its name, or a mapping with `name` and `description`.
    number: number of the turn, from 1.
    is_final: True if no turn follows.
    attempt: number of the attempt at the case, from 1.
    conversation_id, run_id, response_id: ids in the caller's other systems.
    run_duration_ms: duration of the whole run so far.
    metadata: JSON-like data for your own evaluators.
    turn_messages: the messages of the turn, which are also the last ones of `messages`.

    Raises InvalidInput with the path of the invalid value.
    """

    __slots__ = ("_pb",)

    def __init__(
        self,
        messages: Iterable[Any] | str | bytes = (),
        response: Any = None,
        *,
        latency_ms: float | None = None,
        latency_seconds: float | None = None,
        time_to_first_token_ms: float | None = None,
        usage: Any = None,
        model: str | None = None,
        finish_reason: str | None = None,
        cost_usd: float | None = None,
        expected: str | Mapping[str, Any] | None = None,
        scenario: str | Mapping[str, Any] | None = None,
        persona: str | Mapping[str, Any] | None = None,
        number: int | None = None,
        is_final: bool = False,
        attempt: int | None = None,
        conversation_id: str | None = None,
        run_id: str | None = None,
        response_id: str | None = None,
        run_duration_ms: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        turn_messages: Iterable[Any] | str | bytes | None = None,
    ) -> None:
        self._pb = turn_to_pb(
            TurnData(
                messages=messages,
                response=response,
                turn_messages=turn_messages,
                latency_seconds=_seconds("latency", {"ms": latency_ms, "seconds": latency_seconds}),
                time_to_first_token_seconds=_seconds("time_to_first_token", {"ms": time_to_first_token_ms}),
                usage=usage,
                cost=None if cost_usd is None else ("USD", _amount(cost_usd, "cost_usd")),
                model=model,
                finish_reason=finish_reason,
                expected=expected,
                scenario=scenario,
                persona=persona,
                number=number,
                is_final=is_final,
                attempt=attempt,
                conversation_id=conversation_id,
                run_id=run_id,
                response_id=response_id,
                run_duration_seconds=_seconds("run_duration", {"ms": run_duration_ms}),
                metadata=metadata,
            )
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, ignore_unknown: bool = False) -> "Turn":
        """Create a turn from JSON data: `messages`, `lastInvocation`, `turn`, `isFinal`, `expected` and so on.

        The keys are those of the contract or the arguments of `Turn`, in camelCase or snake_case. The keys of
        the invocation may be in `lastInvocation` or at the top level.

        ignore_unknown: ignore unknown keys, for example of a data set's records, instead of rejecting them.

        Raises InvalidInput.
        """
        found = read_keys(data, _KEYS, "", ignore_unknown=ignore_unknown)
        for nested, keys in (("last_invocation", _INVOCATION_KEYS), ("correlation", _CORRELATION_KEYS)):
            inner = read_keys(found.pop(nested, {}), keys, nested, ignore_unknown=ignore_unknown)
            twice = next((name for name in inner if name in found), None)
            if twice:
                raise InvalidInput(f"{nested}.{twice}", f"given outside {nested} as well", "it once")
            found |= inner
        values = {name: found[name] for name in found if name in _FIELDS}
        for name, spellings in _TIMES.items():
            units = {unit: found[key] for unit, key in spellings.items() if key in found}
            values[f"{name}_seconds"] = _seconds(name, units) if units else None
        if "cost_usd" in found:
            values["cost"] = "USD", _amount(found["cost_usd"], "cost_usd")
        elif "cost" in found:
            values["cost"] = _cost(found["cost"])
        turn = cls.__new__(cls)
        turn._pb = turn_to_pb(TurnData(**values))  # noqa: SLF001 - its own
        return turn

    @property
    def context(self) -> EvaluatorContext:
        """The context that evaluators get. Raises InvalidInput for invalid messages in JSON text."""
        return EvaluatorContext(typed(self._pb))

    @classmethod
    def from_proto(cls, pb: "context_pb2.EvaluatorContext") -> "Turn":
        """Create a turn from the message to send. Do not modify the message afterwards."""
        turn = object.__new__(cls)
        turn._pb = pb
        return turn

    def to_proto(self) -> "context_pb2.EvaluatorContext":
        """Return the message to send. Do not modify it."""
        return self._pb

    def __eq__(self, other: object) -> bool:
        return self._pb == other._pb if isinstance(other, Turn) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Turn({len(self._pb.messages)} messages, number {self._pb.turn or 'unknown'})"


TurnLike: TypeAlias = Turn | Mapping[str, Any] | Sequence[Any] | str | bytes | object
"""A turn, JSON data for `Turn.from_dict`, a list of messages or its JSON text, the text of the answer, or
a response, message or result of a framework in docs/frameworks.md."""


def as_turn(turn: TurnLike) -> Turn:
    """Convert a turn in any form to a Turn. Raises InvalidInput.

    A text that begins with "[" is the JSON text of messages; any other text is the answer.
    """
    if isinstance(turn, Turn):
        return turn
    if isinstance(turn, str):
        return Turn(turn) if turn.lstrip().startswith("[") else Turn(response=turn)
    if isinstance(turn, bytes | list | tuple):
        return Turn(turn)
    if isinstance(turn, Mapping) and not _is_foreign(turn):
        return Turn.from_dict(turn)
    if turn is None or isinstance(turn, bool | int | float):
        raise InvalidInput("turn", shown(turn), "a Turn, its messages, or a context as an object")
    return Turn(turn)  # type: ignore[arg-type]


def _is_foreign(data: Mapping[str, Any]) -> bool:
    """Return whether the value is an object of another framework, and not a context."""
    if all(snake(str(key)) in _KEYS for key in data):
        return False
    from .shapes import read_one

    messages = data.get("messages")
    if isinstance(messages, list | tuple) and all(isinstance(message, Mapping) for message in messages):
        return False  # more likely a context with a mistyped key than a state of LangGraph
    return read_one(data) is not None


_UNITS: Final = {"ms": 1000, "seconds": 1}


def _seconds(name: str, units: Mapping[str, Any]) -> float | None:
    given = {unit: value for unit, value in units.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(name, f"given as {' and '.join(given)}", "it in one unit")
    unit, value = given.popitem()
    if unit == "text":
        if not isinstance(value, str):
            # The unit of a bare number is unknown.
            raise InvalidInput(name, shown(value), f'{name}_ms, or a duration with its unit such as "1.5s"')
        return seconds(value, name)
    long = {"ms": "milliseconds", "seconds": "seconds"}[unit]
    return seconds(number(value, f"{name}_{unit}", unit=long) / _UNITS[unit], name)


def _amount(value: Any, path: str) -> float:
    return number(value, path, unit="an amount")


def _cost(cost: Any) -> tuple[str, float]:
    """Read a cost: US dollars, or a mapping with the contract's currency and amount."""
    if not isinstance(cost, Mapping):
        return "USD", _amount(cost, "cost")
    found = read_keys(cost, _COST_KEYS, "cost")
    return text(found.get("currency_code", "USD"), "cost.currency_code"), _amount(
        found.get("amount"), "cost.amount"
    )


_OUTER: Final = (
    "messages",
    "response",
    "last_invocation",
    "correlation",
    "number",
    "is_final",
    "attempt",
    "expected",
    "scenario",
    "persona",
    "metadata",
    "run_duration_ms",
    "run_duration_seconds",
    "turn_messages",
)
_INVOCATION: Final = (
    "latency_ms",
    "latency_seconds",
    "time_to_first_token_ms",
    "time_to_first_token_seconds",
    "usage",
    "cost_usd",
    "model",
    "finish_reason",
)
_FIELDS: Final = frozenset(TurnData._fields)
_TIMES: Final = {
    name: {unit: f"{name}_{unit}" for unit in ("ms", "seconds", "text")}
    for name in ("latency", "time_to_first_token", "run_duration")
}
_COST_KEYS: Final = {"currency_code": "currency_code", "currency": "currency_code", "amount": "amount"}
_CORRELATION_KEYS: Final = {name: name for name in ("conversation_id", "run_id", "response_id")}
_INVOCATION_ALIASES: Final = {
    "latency": "latency_text",
    "time_to_first_token": "time_to_first_token_text",
    "token_usage": "usage",
    "tokens_usage": "usage",
}
_INVOCATION_KEYS: Final = (
    {name: name for name in _INVOCATION}
    | _INVOCATION_ALIASES
    | {
        "messages": "turn_messages",
        "messages_json": "turn_messages",
        "metadata": "invocation_metadata",
        "cost": "cost",
        "start_time": "start_time",
    }
)
_KEYS: Final = (
    {name: name for name in (*_OUTER, *_INVOCATION)}
    | _INVOCATION_ALIASES
    | _CORRELATION_KEYS
    | {"messages_json": "messages", "turn": "number", "run_duration": "run_duration_text"}
)
