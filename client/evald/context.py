"""What an evaluator may look at: one turn of a conversation, read-only.

`EvaluatorContext` is a view over the message that came in: nothing is copied,
and what takes work (the answer, the tool calls) is computed once, when first
asked for, however many evaluators ask.

Words:
- The *turn* is what the agent did last: `last_invocation.messages`, or, where
  the caller sent none, what follows the last user message.
- A *tool call* is an entry of an assistant message's `tool_calls`, whether or
  not a tool message answers it.
- The *answer* of a turn is its last assistant message that has text, else its
  last assistant message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from .result import TokenUsage

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.struct_pb2 import Struct, Value

    from .v1 import context_pb2, message_pb2

Which = Literal["last", "first", "all"]

_TEXT_BLOCKS = frozenset(("text", "input_text", "output_text", ""))
_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


def duration_ms(duration: "Duration") -> float:
    """Milliseconds, with a fraction when there is one."""
    return duration.seconds * 1000 + duration.nanos / 1_000_000


def no_constant(name: str) -> NoReturn:
    """For a decoder's `parse_constant`: NaN and Infinity are not JSON."""
    raise ValueError(f"{name} is not JSON")


# Made once: json.loads makes a decoder for each call that has options, a quarter of the whole cost.
STRICT_JSON: Final = json.JSONDecoder(parse_constant=no_constant)


@cache
def _decode_fast() -> Callable[[str], Any]:
    """pydantic's decoder takes half the time of the standard library's. Imported when first needed:
    who only sends requests never does."""
    from pydantic_core import from_json

    return partial(from_json, allow_inf_nan=False, cache_strings="keys")


def parse_json(text: str) -> Any:
    """Strict JSON: NaN and Infinity are refused. Raises ValueError with what is wrong and where."""
    try:
        return _decode_fast()(text)
    except ValueError:
        pass
    # The standard library says better what is wrong, and reads half surrogate pairs.
    try:
        return STRICT_JSON.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as problem:
        if "integer string conversion" in str(problem):
            raise ValueError("a number has more than 4,300 digits, which is more than evald reads") from None
        raise


def struct_to_dict(struct: "Struct") -> dict[str, Any]:
    """Plain Python data. Whole numbers become int: a Struct knows doubles only."""
    return {key: value_to_python(value) for key, value in struct.fields.items()}


def value_to_python(value: "Value") -> Any:
    """Plain Python data out of a protobuf Value."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return struct_to_dict(value.struct_value)
    if kind == "list_value":
        return [value_to_python(item) for item in value.list_value.values]
    return None


def message_text(pb: "message_pb2.ChatMessage") -> str:
    """The string, or the text blocks joined with nothing between; "" for null."""
    text = pb.text
    if text or not pb.HasField("blocks"):
        return text
    return "".join(block.text for block in pb.blocks.items if block.type in _TEXT_BLOCKS)


class ToolCall:
    """One tool call of an assistant message.

    name: the function's name.
    arguments: its arguments exactly as the model wrote them: JSON text, perhaps not valid.
    id: what the answering tool message repeats; "" when the caller gave none.
    """

    __slots__ = ("_args", "_pb", "arguments", "id", "name")

    def __init__(self, pb: "message_pb2.ToolCall") -> None:
        function = pb.function
        self._pb = pb
        self.name = function.name
        self.arguments = function.arguments
        self.id = pb.id
        self._args: Any = _UNREAD

    @property
    def args(self) -> Any:
        """The arguments as data; {} when empty. Raises ValueError when they are not valid JSON."""
        if self._args is _UNREAD:
            self._args = parse_json(self.arguments) if self.arguments.strip() else {}
        return self._args

    @property
    def duration_ms(self) -> float | None:
        """How long the call took, in milliseconds; None when the caller did not say."""
        return duration_ms(self._pb.duration) if self._pb.HasField("duration") else None

    def __repr__(self) -> str:
        return f"{self.name}({self.arguments})"


class _Unread:
    __slots__ = ()


_UNREAD = _Unread()


class Message:
    """One chat message in OpenAI's shape."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "message_pb2.ChatMessage") -> None:
        self._pb = pb

    @property
    def role(self) -> str:
        """Usually "system", "developer", "user", "assistant" or "tool"; an open set."""
        return self._pb.role

    @property
    def text(self) -> str:
        """The string, or the text blocks joined with nothing between; "" for null."""
        return message_text(self._pb)

    @property
    def is_null(self) -> bool:
        """True when the content is null or absent, which is not the same as ""."""
        return self._pb.WhichOneof("content") is None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls, in order."""
        return [ToolCall(call) for call in self._pb.tool_calls]

    @property
    def tool_call_id(self) -> str | None:
        """For role "tool": the id of the call that this message answers."""
        return self._pb.tool_call_id if self._pb.HasField("tool_call_id") else None

    @property
    def name(self) -> str | None:
        """Author or tool name."""
        return self._pb.name if self._pb.HasField("name") else None

    @property
    def id(self) -> str | None:
        """Id in the caller's own system."""
        return self._pb.id if self._pb.HasField("id") else None

    @property
    def refusal(self) -> str | None:
        """The model's refusal text, when it refused."""
        return self._pb.refusal if self._pb.HasField("refusal") else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Caller data."""
        return struct_to_dict(self._pb.metadata)

    def __repr__(self) -> str:
        return f"Message({self.role}: {self.text[:60]!r})"


class Invocation:
    """What the agent reported about the turn. None always means: not reported."""

    __slots__ = ("_latency_ms", "_pb", "_total_tokens")

    def __init__(self, pb: "context_pb2.Invocation") -> None:
        self._pb = pb
        self._latency_ms: Any = _UNREAD
        self._total_tokens: Any = _UNREAD

    @property
    def latency_ms(self) -> float | None:
        """Milliseconds from request to complete answer."""
        if self._latency_ms is _UNREAD:
            self._latency_ms = duration_ms(self._pb.latency) if self._pb.HasField("latency") else None
        return self._latency_ms  # type: ignore[no-any-return]

    @property
    def time_to_first_token_ms(self) -> float | None:
        """Milliseconds to the first token, when the agent streams."""
        if not self._pb.HasField("time_to_first_token"):
            return None
        return duration_ms(self._pb.time_to_first_token)

    @property
    def token_usage(self) -> TokenUsage | None:
        """Token usage of the turn."""
        if not self._pb.HasField("token_usage"):
            return None
        pb = self._pb.token_usage
        return TokenUsage(
            pb.input_tokens if pb.HasField("input_tokens") else None,
            pb.output_tokens if pb.HasField("output_tokens") else None,
            pb.total_tokens if pb.HasField("total_tokens") else None,
        )

    @property
    def total_tokens(self) -> int | None:
        """`token_usage.total`, without reading the rest."""
        if self._total_tokens is _UNREAD:
            self._total_tokens = self._read_total_tokens()
        return self._total_tokens  # type: ignore[no-any-return]

    def _read_total_tokens(self) -> int | None:
        pb = self._pb
        if not pb.HasField("token_usage"):
            return None
        usage = pb.token_usage
        if usage.HasField("total_tokens"):
            return usage.total_tokens
        if usage.HasField("input_tokens") or usage.HasField("output_tokens"):
            return usage.input_tokens + usage.output_tokens
        return None

    @property
    def cost_usd(self) -> float | None:
        """Cost in US dollars; None also when it is in another currency."""
        if not self._pb.HasField("cost") or self._pb.cost.currency_code not in ("USD", ""):
            return None
        return self._pb.cost.amount

    @property
    def model(self) -> str | None:
        """Model that answered, as the agent names it."""
        return self._pb.model if self._pb.HasField("model") else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Further data, for example "finish_reason"."""
        return struct_to_dict(self._pb.metadata)


class Expected:
    """The reference to compare with."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Expected") -> None:
        self._pb = pb

    @property
    def text(self) -> str | None:
        """Expected answer; None when there is none."""
        return self._pb.text if self._pb.HasField("text") else None

    @property
    def has_data(self) -> bool:
        """Whether there is an expected answer as data; null is data too."""
        return self._pb.HasField("data")

    @property
    def data(self) -> Any:
        """Expected answer as data. None both for null and for none: see has_data."""
        return value_to_python(self._pb.data)

    @property
    def messages(self) -> list[Message]:
        """Expected messages; empty when there are none."""
        return [Message(pb) for pb in self._pb.messages]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls of the expected assistant messages, in order."""
        return collect_tool_calls(self._pb.messages)


class Scenario:
    """What the conversation is meant to test."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Scenario") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """Stable name."""
        return self._pb.name

    @property
    def instructions(self) -> str | None:
        """Instructions given to the simulated user or to the judge."""
        return self._pb.instructions if self._pb.HasField("instructions") else None

    @property
    def max_messages(self) -> int | None:
        """Largest number of messages that the scenario allows."""
        return self._pb.max_messages if self._pb.HasField("max_messages") else None

    @property
    def success_criteria(self) -> str | None:
        """Says in plain language when the scenario has succeeded."""
        return self._pb.success_criteria if self._pb.HasField("success_criteria") else None

    @property
    def failure_criteria(self) -> str | None:
        """Says in plain language when the scenario has failed."""
        return self._pb.failure_criteria if self._pb.HasField("failure_criteria") else None


class Persona:
    """The simulated user."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Persona") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """Stable name."""
        return self._pb.name

    @property
    def description(self) -> str | None:
        """Description given to the simulator."""
        return self._pb.description if self._pb.HasField("description") else None


def collect_tool_calls(
    messages: Sequence["message_pb2.ChatMessage"],
) -> list[ToolCall]:
    """The tool calls of assistant messages, in order. Calls under other roles are not the agent's."""
    return [ToolCall(call) for pb in messages if pb.role == "assistant" for call in pb.tool_calls]


class Conversation:
    """The tool calls of a conversation that grows. Each message is looked at once, so that
    turn 100 of a session costs what turn 2 costs."""

    __slots__ = ("_calls", "_messages", "_seen")

    def __init__(self, messages: Sequence["message_pb2.ChatMessage"]) -> None:
        self._messages = messages
        self._calls: list[ToolCall] = []
        self._seen = 0

    def tool_calls(self) -> list[ToolCall]:
        """All tool calls so far, in order."""
        total = len(self._messages)
        if self._seen < total:
            self._calls.extend(collect_tool_calls(self._messages[self._seen :]))
            self._seen = total
        return self._calls


class EvaluatorContext:
    """One turn of a conversation and all that is known about it.

    config: the config of a function evaluator, its keys as the caller wrote
    them; empty for class evaluators, whose config is in their fields.
    turn: number of the turn, from 1; 0 when the caller does not count.
    is_final: True when no turn follows.
    """

    # Slots and hand-kept values, because cached_property takes a lock before Python 3.12, which costs
    # more than finding the answer.
    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_answer_json",
        "_conversation",
        "_invocation",
        "_pb",
        "_turn",
        "_turn_calls",
        "config",
        "is_final",
        "turn",
    )

    def __init__(
        self,
        pb: "context_pb2.EvaluatorContext",
        conversation: Conversation | None = None,
        config: Mapping[str, Any] = _NO_CONFIG,
    ) -> None:
        self._pb = pb
        self._conversation = conversation
        self._invocation: Invocation | None = None
        self._turn: Sequence[message_pb2.ChatMessage] | None = None
        self._turn_calls: list[ToolCall] | None = None
        self._answer: Any = _UNREAD
        self._answer_bytes: bytes | None = None
        self._answer_json: tuple[Any, str | None] | None = None
        self.config = config
        self.turn = pb.turn
        self.is_final = pb.is_final

    def with_config(self, config: Mapping[str, Any]) -> "EvaluatorContext":
        """The same turn for an evaluator with this config."""
        other = EvaluatorContext.__new__(type(self))
        for name in EvaluatorContext.__slots__:
            setattr(other, name, getattr(self, name))
        other.config = config
        return other

    def _all(self) -> "Sequence[message_pb2.ChatMessage]":
        return self._pb.messages or self._pb.last_invocation.messages

    def _of_turn(self) -> "Sequence[message_pb2.ChatMessage]":
        turn = self._turn
        if turn is None:
            turn = self._pb.last_invocation.messages
            if not turn:
                messages = self._pb.messages
                start = len(messages)
                while start and messages[start - 1].role != "user":
                    start -= 1
                turn = messages[start:]
            self._turn = turn
        return turn

    @property
    def messages(self) -> list[Message]:
        """The whole conversation so far, oldest first."""
        return [Message(pb) for pb in self._all()]

    @property
    def turn_messages(self) -> list[Message]:
        """The messages of the turn."""
        return [Message(pb) for pb in self._of_turn()]

    @property
    def message_count(self) -> int:
        """Number of messages in the whole conversation."""
        return len(self._all())

    @property
    def turn_message_count(self) -> int:
        """Number of messages in the turn."""
        return len(self._of_turn())

    @property
    def answer(self) -> str | None:
        """Text of the answer; "" when it has none; None when the turn has no assistant message."""
        if self._answer is _UNREAD:
            self._answer = self._find_answer()
        return self._answer  # type: ignore[no-any-return]

    def _find_answer(self) -> str | None:
        found: str | None = None
        own = self._pb.last_invocation.messages
        messages = own or self._pb.messages
        position = len(messages)
        # From the end, so that a long conversation costs no more than a short one.
        while position:
            position -= 1
            pb = messages[position]
            role = pb.role
            if role == "assistant":
                text = message_text(pb)
                if text:
                    return text
                found = ""
            elif role == "user" and not own:
                break
        return found

    def answer_of(self, which: Which) -> str | None:
        """The answer, or the first assistant message with text, or all of them joined by newlines."""
        if which == "last":
            return self.answer
        texts = [message_text(pb) for pb in self._of_turn() if pb.role == "assistant"]
        if not texts:
            return None
        with_text = [text for text in texts if text]
        return "\n".join(with_text) if which == "all" else next(iter(with_text), "")

    @property
    def answer_bytes(self) -> bytes | None:
        """The answer in UTF-8, encoded once for all evaluators that search bytes."""
        if self._answer_bytes is None:
            answer = self.answer
            if answer is not None:
                self._answer_bytes = answer.encode("utf-8", "surrogatepass")
        return self._answer_bytes

    @property
    def answer_json(self) -> tuple[Any, str | None]:
        """The answer parsed as strict JSON, and what is wrong with it or None. Do not change the data."""
        found = self._answer_json
        if found is None:
            try:
                found = parse_json(self.answer or ""), None
            except ValueError as problem:
                found = None, str(problem)
            self._answer_json = found
        return found

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        """Tool calls of the turn, in order. Do not change the list."""
        if self._turn_calls is None:
            self._turn_calls = collect_tool_calls(self._of_turn())
        return self._turn_calls

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls of the whole conversation, in order. Do not change the list."""
        if self._conversation is None:
            self._conversation = Conversation(self._all())
        return self._conversation.tool_calls()

    @property
    def last_invocation(self) -> Invocation:
        """What the agent reported about the turn."""
        if self._invocation is None:
            self._invocation = Invocation(self._pb.last_invocation)
        return self._invocation

    @property
    def run_duration_ms(self) -> float | None:
        """Milliseconds that the whole run has taken so far; None when not reported."""
        return duration_ms(self._pb.run_duration) if self._pb.HasField("run_duration") else None

    @property
    def expected(self) -> Expected:
        """The reference to compare with."""
        return Expected(self._pb.expected)

    @property
    def scenario(self) -> Scenario | None:
        """What the conversation is meant to test, when there is a scenario."""
        return Scenario(self._pb.scenario) if self._pb.HasField("scenario") else None

    @property
    def persona(self) -> Persona | None:
        """The simulated user, when there is one."""
        return Persona(self._pb.persona) if self._pb.HasField("persona") else None

    @property
    def attempt(self) -> int:
        """1 for the first attempt at the case; 0 when the caller does not count."""
        return self._pb.attempt

    @property
    def metadata(self) -> dict[str, Any]:
        """Caller data."""
        return struct_to_dict(self._pb.metadata)

    def __repr__(self) -> str:
        return f"EvaluatorContext(turn {self.turn}, {self.message_count} messages)"
