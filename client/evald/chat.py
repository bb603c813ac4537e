"""Chat messages and tool calls for evaluators: views of the received message."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .blocks import (
    MAX_BLOCKS,
    TEXT_BLOCKS,
    TooMany,
    UnreadableContent,
    block_text,
    has_text,
    unread_block,
)
from .call_shapes import has_call_markup
from .errors import InvalidInput
from .reasoning import answer_text, split_reasoning
from .strict_json import parse_json
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import message_pb2

ROLES: Final = ("user", "assistant", "system", "developer", "tool")
"""The roles that evaluators know."""

_REASONING: Final = "reasoning"  # the key of a message's metadata

UNREAD: Final = object()
"""The placeholder of a value that has not been computed yet."""


def message_text(pb: "message_pb2.ChatMessage") -> str:
    """Return the text of a message without the reasoning that a model left in it. Raises as `whole_text`."""
    text = whole_text(pb)
    return answer_text(text) if pb.role == "assistant" else text


def whole_text(pb: "message_pb2.ChatMessage") -> str:
    """Return the text of a message's content: the string, or all text blocks joined; "" for null.

    Raises UnreadableContent for a block of an unknown type that holds text, and TooMany.
    """
    text = pb.text
    if text or not pb.HasField("blocks"):
        return text
    return block_text(pb)


def is_answer(pb: "message_pb2.ChatMessage") -> bool:
    """Return whether an assistant message is an answer: it has a text (which may be ""), a tool call or a refusal.

    A message with none of these is not an empty answer, because every check for absence would pass on it.
    """
    return (
        pb.HasField("text")
        or bool(pb.tool_calls)
        or pb.HasField("refusal")
        or (pb.HasField("blocks") and has_text(pb))
    )


def is_cut_off(pb: "message_pb2.ChatMessage") -> bool:
    """Return whether a model was cut off while it was thinking: its text is reasoning without an end."""
    if pb.role != "assistant" or pb.tool_calls:
        return False
    split = split_reasoning(whole_text(pb))
    return split is not None and split.answer is None


def without_reasoning(pb: "message_pb2.ChatMessage") -> "message_pb2.ChatMessage":
    """Return a message with its reasoning in the metadata instead of the text; the same object if it has none."""
    if pb.role != "assistant":
        return pb
    try:
        split = split_reasoning(whole_text(pb))
    except InvalidInput:  # raised again, with its path, by whoever reads the content
        return pb
    if split is None:
        return pb
    stripped = type(pb)()
    stripped.CopyFrom(pb)
    if pb.HasField("blocks"):
        others = [block for block in pb.blocks.items if block.type not in TEXT_BLOCKS]
        stripped.blocks.ClearField("items")
        if split.answer is not None:
            stripped.blocks.items.add(type="text", text=split.answer)
        stripped.blocks.items.extend(others)
    elif split.answer is None:
        stripped.ClearField("text")
    else:
        stripped.text = split.answer
    given = pb.metadata.fields[_REASONING].string_value if _REASONING in pb.metadata.fields else ""
    stripped.metadata[_REASONING] = "\n".join(filter(None, (given, split.reasoning)))
    return stripped


class _Unreadable(NamedTuple):
    problem: str


class ToolCall:
    """One tool call of an assistant message.

    name: the function's name.
    arguments: its arguments exactly as the model wrote them: JSON text, possibly invalid.
    id: id that the answering tool message repeats; "" if the caller gave none.
    """

    __slots__ = ("_args", "_pb", "arguments", "id", "name")

    def __init__(self, pb: "message_pb2.ToolCall") -> None:
        function = pb.function
        self._pb = pb
        self.name = function.name
        self.arguments = function.arguments
        self.id = pb.id
        self._args: Any = UNREAD

    @property
    def args(self) -> Any:
        """The arguments as data; {} if there are none, which models also write as null, "", "null" or "{}".

        Raises ValueError for invalid JSON, and strict_json.TooLarge for JSON that is larger than evald reads.
        """
        return self.read_args()

    def read_args(self, check: Callable[[], None] | None = None) -> Any:
        """Return `args`. check: called regularly while long arguments are parsed; may raise to stop."""
        if self._args is UNREAD:
            try:
                args = parse_json(self.arguments, check) if self.arguments.strip() else {}
                self._args = {} if args is None or args in ("", "null", "{}") else args
            except ValueError as problem:
                self._args = _Unreadable(str(problem))
        if self._args.__class__ is _Unreadable:
            raise ValueError(self._args.problem)
        return self._args

    @property
    def duration_ms(self) -> float | None:
        """The duration of the call in milliseconds; None if not reported.

        Raises ValueError for a negative duration, because it would pass every limit.
        """
        if not self._pb.HasField("duration"):
            return None
        milliseconds = duration_ms(self._pb.duration)
        if milliseconds < 0:
            raise ValueError(
                f"the tool call {self.name!r} has a duration of {milliseconds:g}ms, wanted 0 or more"
            )
        return milliseconds

    def __repr__(self) -> str:
        return f"{self.name}({self.arguments})"


class Message:
    """One chat message in OpenAI's shape."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "message_pb2.ChatMessage") -> None:
        self._pb = pb

    @property
    def role(self) -> str:
        """The role: usually "system", "developer", "user", "assistant" or "tool"; an open set."""
        return self._pb.role

    @property
    def text(self) -> str:
        """The text of the content: the string, or all text blocks joined; "" for null. Raises as `whole_text`."""
        return whole_text(self._pb)

    @property
    def is_null(self) -> bool:
        """True if the content is null or absent, which differs from ""."""
        return self._pb.WhichOneof("content") is None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls, in order, whatever the role. Raises UnreadableContent for one that is not understood."""
        if (unread := _unread_in(self._pb)) is not None:
            raise UnreadableContent(*unread)
        return [ToolCall(call) for call in self._pb.tool_calls]

    @property
    def tool_call_id(self) -> str | None:
        """The id of the call that this message answers, for role "tool"."""
        return self._pb.tool_call_id if self._pb.HasField("tool_call_id") else None

    @property
    def name(self) -> str | None:
        """The name of the author or the tool."""
        return self._pb.name if self._pb.HasField("name") else None

    @property
    def id(self) -> str | None:
        """The id in the caller's own system."""
        return self._pb.id if self._pb.HasField("id") else None

    @property
    def refusal(self) -> str | None:
        """The model's refusal text; None if it did not refuse."""
        return self._pb.refusal if self._pb.HasField("refusal") else None

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's metadata."""
        return struct_to_dict(self._pb.metadata)

    def __repr__(self) -> str:
        return f"Message({self.role}: {self.text[:60]!r})"


_IN_CALLS: Final = "it in `tool_calls` of an assistant message"


def _no_check() -> None:
    pass


def _in_time(
    calls: "Sequence[message_pb2.ToolCall]", check: Callable[[], None]
) -> "Iterator[message_pb2.ToolCall]":
    """Yield the calls. check: called before every 128 of them; may raise to stop the work."""
    for index, call in enumerate(calls):
        if not index & 127:
            check()
        yield call


def _unread_in(
    pb: "message_pb2.ChatMessage", check: Callable[[], None] = _no_check
) -> tuple[str, str, str] | None:
    """Return the path, the problem and the wanted form of a message's first call that is not understood."""
    if pb.unread_calls:
        return pb.unread_calls[0], "looks like a tool call that evald does not read", _IN_CALLS
    if pb.HasField("blocks"):
        if len(pb.blocks.items) > MAX_BLOCKS:
            raise TooMany("blocks", "content blocks", len(pb.blocks.items), MAX_BLOCKS)
        block = unread_block(pb)
        if block is not None:
            return block[0], f"got {block[1]!r:.80}, which looks like a tool call", _IN_CALLS
    if pb.role == "assistant" and has_call_markup(pb.text):
        return "text", "a tool call that the model's server did not parse", _IN_CALLS
    for index, call in enumerate(_in_time(pb.tool_calls, check)):
        if not call.function.name:
            return f"tool_calls[{index}].function.name", "empty", "the name of the function that is called"
    return None


class CallReader:
    """Reads the tool calls of a conversation, message by message, and knows which results answer them.

    earlier: messages before the first one, whose calls may be answered.
    Reading a message again, after `check` has stopped it, is harmless.
    """

    __slots__ = ("_anonymous", "_earlier", "_ids", "_names")

    def __init__(self, earlier: "Iterable[message_pb2.ChatMessage]" = ()) -> None:
        self._earlier = earlier
        self._ids: set[str] = set()
        self._names: set[str] = set()
        self._anonymous: set[str] = set()  # names of calls without an id

    def read(
        self, pb: "message_pb2.ChatMessage", check: Callable[[], None] = _no_check
    ) -> "Sequence[message_pb2.ToolCall]":
        """Return the calls of the next message if it is the agent's. Raises UnreadableContent, and as `check`."""
        unread = self.unread(pb, check)
        if unread is not None:
            raise UnreadableContent(*unread)
        return pb.tool_calls if pb.role == "assistant" else ()

    def unread(
        self, pb: "message_pb2.ChatMessage", check: Callable[[], None] = _no_check
    ) -> tuple[str, str, str] | None:
        """Return the path, the problem and the wanted form of what is not understood in the next message."""
        unread = _unread_in(pb, check)
        if unread is not None:
            return unread
        role = pb.role
        if role == "assistant":
            self._remember(pb, check)
        elif role not in ROLES:
            return "role", f"got {role!r:.80}, which may call tools", " or ".join(map(repr, ROLES))
        elif pb.tool_calls:
            return "tool_calls", f"tool calls of role {role!r}", _IN_CALLS
        elif role == "tool" and not self._answers(pb):
            for message in self._earlier:
                if message.role == "assistant":
                    self._remember(message, check)
            self._earlier = ()
            if not self._answers(pb):
                got = f"the result of a call that is not there: id {pb.tool_call_id!r:.80}, name {pb.name!r:.80}"
                return "tool_call_id", got, "the call in an assistant message before it"
        return None

    def _remember(self, pb: "message_pb2.ChatMessage", check: Callable[[], None]) -> None:
        for call in _in_time(pb.tool_calls, check):
            name = call.function.name
            self._names.add(name)
            if call.id:
                self._ids.add(call.id)
            else:
                self._anonymous.add(name)

    def _answers(self, pb: "message_pb2.ChatMessage") -> bool:
        """Return whether the call that a result answers was read: by its id, else by the tool's name, if given."""
        if pb.tool_call_id in self._ids:
            return True
        names = self._anonymous if pb.tool_call_id else self._names
        return pb.name in names if pb.name else bool(names)


def collect_tool_calls(
    messages: Sequence["message_pb2.ChatMessage"],
    check: Callable[[], None] = _no_check,
    *,
    reader: CallReader | None = None,
    first: int = 0,
    path: str = "messages",
) -> list[ToolCall]:
    """Return the tool calls of assistant messages, in order.

    check: called after at most 128 calls; may raise to stop the work.
    reader: the reader of the messages before.
    first, path: index of the first message and location of the messages, for errors.

    Raises UnreadableContent for what looks like a tool call and is not understood: `unread_calls`, content blocks,
    calls of another role, an unknown role, a result without its call.
    """
    reader = reader or CallReader()
    calls: list[ToolCall] = []
    for index, pb in enumerate(messages, first):
        try:
            of_message = reader.read(pb, check)
        except InvalidInput as problem:
            raise problem.below(f"{path}[{index}]") from None
        calls.extend(ToolCall(call) for call in _in_time(of_message, check))
    return calls


class Conversation:
    """The tool calls of a growing conversation.

    Each message is read once, so turn 100 of a session takes as long as turn 2.
    """

    __slots__ = ("_found", "_messages", "_reader")

    def __init__(self, messages: Sequence["message_pb2.ChatMessage"]) -> None:
        self._messages = messages
        self._reader = CallReader()
        self._found: tuple[int, list[ToolCall]] = (0, [])  # number of messages read, and their calls

    def tool_calls(self, check: Callable[[], None] = _no_check) -> list[ToolCall]:
        """Return all tool calls so far, in order. check, Raises: as in `collect_tool_calls`."""
        # A tuple that is replaced, never modified, because evaluators in several threads share it.
        seen, calls = self._found
        total = len(self._messages)
        if seen < total:
            calls = calls + collect_tool_calls(self._messages[seen:], check, reader=self._reader, first=seen)
            self._found = total, calls
        return calls
