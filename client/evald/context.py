"""The read-only view of one turn that evaluators get.

`EvaluatorContext` wraps the protobuf message without copying it. Expensive values (the answer, the tool calls)
are computed at the first access and shared by all evaluators.

Terms:
- The *turn* is the agent's last run: `last_invocation.messages`, or, if the
  caller sent none, the messages after the last user message.
- A *tool call* is an entry of an assistant message's `tool_calls`, with or
  without a tool message that answers it.
- The *answer* of a turn is the text of its last assistant message with text,
  after the last user message. A turn of tool calls alone, or with nothing but
  spaces as text, has no answer, because every check for absence would pass on it.
- A user message at the end that is a simulator's end mark ends the conversation
  and is in no turn (evald.end_marks).
- *Reasoning* at the start of an assistant message's text (see `reasoning`) is
  not part of its text, but in its metadata. A turn whose last message is
  nothing but unfinished reasoning has no answer.

Reading the text of a content block of an unknown type, and reading the tool
calls where something looks like a call and is not understood, raises
UnreadableContent.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from .blocks import MAX_BLOCKS, TooMany, UnreadableContent, check_texts
from .chat import (
    ROLES,
    UNREAD,
    CallReader,
    Conversation,
    Message,
    ToolCall,
    collect_tool_calls,
    is_answer,
    is_cut_off,
    message_text,
    whole_text,
    without_reasoning,
)
from .context_data import Expected, Invocation, Persona, Scenario
from .errors import errors_below
from .reasoning import split_reasoning
from .strict_json import TooLarge, parse_json
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import context_pb2, message_pb2

Which = Literal["last", "first", "all"]

Extent = Literal["turn", "conversation"]

Made = TypeVar("Made")

NO_ANSWER: Final = "No assistant message found"

NO_TEXT: Final = "No assistant message with text"

_ROLES_SHOWN: Final = 5

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


def _unread_calls(
    messages: "Sequence[message_pb2.ChatMessage]", earlier: "Iterable[message_pb2.ChatMessage]" = ()
) -> dict[int, str]:
    """Return the paths of calls that are not understood, by the index of their message, without those it names itself."""
    reader = CallReader(earlier)
    unread = {index: reader.unread(pb) for index, pb in enumerate(messages) if not pb.unread_calls}
    return {index: problem[0] for index, problem in unread.items() if problem is not None}


class OutOfTime(Exception):
    """Raised by `EvaluatorContext.check_time`. Evaluators must not catch it."""


class _Seen:
    """What was found of a turn, shared by all evaluators of a call.

    whole: the same for the texts with reasoning, after `with_reasoning`. has_reasoning: whether those differ.
    stop_nanos: for `check_time`.
    """

    # Slots and explicit caching, because before Python 3.12 cached_property takes a lock, which takes longer
    # than finding the answer.
    __slots__ = (
        "answer",
        "answer_bytes",
        "answer_json",
        "conversation",
        "has_reasoning",
        "invocation",
        "made",
        "serialized",
        "stop_nanos",
        "turn",
        "turn_calls",
        "whole",
    )

    def __init__(self, conversation: Conversation | None) -> None:
        self.answer: Any = UNREAD
        self.answer_bytes: bytes | None = None
        self.answer_json: tuple[Any, str | None] | TooLarge | None = None
        self.conversation = conversation
        self.has_reasoning = False
        self.invocation: Invocation | None = None
        self.made: dict[Hashable, Any] = {}
        self.serialized: bytes | None = None
        self.stop_nanos = 0
        self.turn: Sequence[message_pb2.ChatMessage] | None = None
        self.turn_calls: list[ToolCall] | None = None
        self.whole: _Seen | None = None


class EvaluatorContext:
    """One turn of a conversation, with its messages, metadata and expected answer.

    config: the config of a function evaluator, with the caller's keys; empty for class evaluators, whose
        config is in their fields.
    turn: number of the turn, from 1; 0 if the caller does not number turns.
    is_final: True if no turn follows.
    """

    __slots__ = ("_keeps_reasoning", "_pb", "_seen", "config", "is_final", "turn")

    def __init__(
        self,
        pb: "context_pb2.EvaluatorContext",
        conversation: Conversation | None = None,
        config: Mapping[str, Any] = _NO_CONFIG,
        *,
        keeps_reasoning: bool = False,
        seen: _Seen | None = None,
    ) -> None:
        """keeps_reasoning: whether the texts contain the reasoning that a model left in them. seen: of another view of
        the same texts."""
        self._pb = pb
        self._keeps_reasoning = keeps_reasoning
        self._seen = seen or _Seen(conversation)
        self.config = config
        self.turn = pb.turn
        self.is_final = pb.is_final

    def with_config(self, config: Mapping[str, Any]) -> "EvaluatorContext":
        """Return the same turn with the config of a function evaluator. Both share what they find and the time."""
        return self._view(config, self._seen, keeps_reasoning=self._keeps_reasoning)

    def _view(self, config: Mapping[str, Any], seen: _Seen, *, keeps_reasoning: bool) -> "EvaluatorContext":
        view = EvaluatorContext(self._pb, config=config, keeps_reasoning=keeps_reasoning, seen=seen)
        view.turn, view.is_final = self.turn, self.is_final
        return view

    def with_reasoning(self) -> "EvaluatorContext":
        """Return the same turn with the reasoning in its texts; this context itself if the turn's texts have none."""
        if self._keeps_reasoning:
            return self
        seen = self._seen
        if seen.whole is None:
            seen.whole = _Seen(seen.conversation)
            seen.whole.stop_nanos = seen.stop_nanos
            seen.has_reasoning = any(without_reasoning(pb) is not pb for pb in self._of_turn())
        return self._view(self.config, seen.whole, keeps_reasoning=True) if seen.has_reasoning else self

    def check_time(self) -> None:
        """Raise OutOfTime if the time slice in the server's event loop has expired, or the call has ended.

        Call it about every 0.1 ms in loops whose work is the product of two sizes that a caller controls. The
        server then runs the evaluator again from the start in a thread, or responds with TIMEOUT, so the
        evaluator must have no side effects up to that point. Does nothing in tests and in workers.
        """
        stop = self._seen.stop_nanos
        if stop and time.perf_counter_ns() > stop:
            raise OutOfTime

    def stop_at(self, nanos: int) -> None:
        """Set the time from which `check_time` raises. For engines. nanos: of `time.perf_counter_ns`; 0 for never."""
        self._seen.stop_nanos = nanos
        if self._seen.whole is not None:
            self._seen.whole.stop_nanos = nanos

    def serialized(self) -> bytes:
        """Return the turn as bytes of evald.v1.EvaluatorContext, encoded once for all evaluators that forward it.

        What looks like a tool call and is not understood is in its messages' `unread_calls`. Raises
        UnreadableContent for a text that is not understood, and TooMany for too many content blocks.
        """
        if self._seen.serialized is None:
            self._check(self._pb.messages, "messages")
            self._check(self._pb.last_invocation.messages, "last_invocation.messages")
            pb = self._marked(self._pb if self._keeps_reasoning else self._stripped())
            self._seen.serialized = pb.SerializeToString()
        return self._seen.serialized

    def _marked(self, pb: "context_pb2.EvaluatorContext") -> "context_pb2.EvaluatorContext":
        """Return this turn, possibly stripped, with the calls that are not understood in `unread_calls`."""
        messages, own = self._pb.messages, self._pb.last_invocation.messages
        marks = _unread_calls(messages), _unread_calls(own, messages[: max(0, len(messages) - len(own))])
        if not any(marks):
            return pb
        marked = type(pb)()
        marked.CopyFrom(pb)
        for into, paths in zip((marked.messages, marked.last_invocation.messages), marks, strict=True):
            for index, path in paths.items():
                into[index].unread_calls.append(path)
        return marked

    def _stripped(self) -> "context_pb2.EvaluatorContext":
        """Return the turn without the reasoning in its texts; the received message itself if it has none."""
        stripped: context_pb2.EvaluatorContext | None = None
        for of_turn in (False, True):
            for index, pb in enumerate(self._pb.last_invocation.messages if of_turn else self._pb.messages):
                message = without_reasoning(pb)
                if message is not pb:
                    if stripped is None:
                        stripped = type(self._pb)()
                        stripped.CopyFrom(self._pb)
                    into = stripped.last_invocation.messages if of_turn else stripped.messages
                    into[index].CopyFrom(message)
        return self._pb if stripped is None else stripped

    def _check(self, messages: "Sequence[message_pb2.ChatMessage]", path: str) -> None:
        """Raise UnreadableContent for texts that the receiver would ignore."""
        self._count_blocks(messages)
        for index, pb in enumerate(messages):
            if pb.HasField("blocks"):
                with errors_below(f"{path}[{index}]"):
                    check_texts(pb)

    @staticmethod
    def _count_blocks(messages: "Sequence[message_pb2.ChatMessage]") -> None:
        """Raise TooMany if reading all blocks would take too long."""
        blocks = sum(len(pb.blocks.items) for pb in messages if pb.HasField("blocks"))
        if blocks > MAX_BLOCKS:
            raise TooMany("messages", "content blocks", blocks, MAX_BLOCKS)

    def _all(self) -> "Sequence[message_pb2.ChatMessage]":
        return self._pb.messages or self._pb.last_invocation.messages

    def _of_turn(self) -> "Sequence[message_pb2.ChatMessage]":
        turn = self._seen.turn
        if turn is None:
            turn = self._pb.last_invocation.messages
            if not turn:
                messages = self._pb.messages
                turn = messages[_after_last_user(messages) :]
            self._seen.turn = turn
        return turn

    @property
    def messages(self) -> list[Message]:
        """The whole conversation so far, oldest first. Raises TooMany for too many content blocks."""
        return self._views(self._all())

    @property
    def turn_messages(self) -> list[Message]:
        """The messages of the turn. Raises TooMany for too many content blocks."""
        return self._views(self._of_turn())

    def _views(self, messages: "Sequence[message_pb2.ChatMessage]") -> list[Message]:
        messages = list(messages)  # once, because each access to a repeated field creates a new object
        self._count_blocks(messages)
        if not self._keeps_reasoning:
            messages = list(map(without_reasoning, messages))
        return list(map(Message, messages))

    @property
    def message_count(self) -> int:
        """The number of messages in the whole conversation."""
        return len(self._all())

    @property
    def size_bytes(self) -> int:
        """The size of the whole serialized context, in bytes."""
        return self._pb.ByteSize()

    @property
    def answer(self) -> str | None:
        """The text of the answer; None if the turn has no answer. Raises UnreadableContent."""
        if self._seen.answer is UNREAD:
            self._seen.answer = self._find_answer()
        return self._seen.answer  # type: ignore[no-any-return]

    def _find_answer(self) -> str | None:
        own = self._pb.last_invocation.messages
        messages = own or self._pb.messages
        position = len(messages)
        blocks = 0
        is_last = True
        unknown: UnreadableContent | None = None
        # From the end, so that a long conversation takes no longer than a short one.
        while position:
            position -= 1
            pb = messages[position]
            role = pb.role
            if role == "user":
                break
            if role == "assistant":
                text = pb.text
                if not text and pb.HasField("blocks"):
                    blocks += len(pb.blocks.items)
                    if blocks > MAX_BLOCKS:
                        raise TooMany("messages", "content blocks", blocks, MAX_BLOCKS)
                    with errors_below(f"{'last_invocation.' if own else ''}messages[{position}]"):
                        text = whole_text(pb)
                split = None if self._keeps_reasoning else split_reasoning(text)
                if split is not None:
                    if split.answer is None and is_last and not pb.tool_calls:
                        return None
                    text = split.answer or ""
                if text and not text.isspace():
                    if unknown is not None:
                        raise unknown
                    return text
                is_last = False
            elif role not in ROLES and unknown is None:
                # It may be the user's or the agent's, so that what is before it is perhaps no answer.
                unknown = UnreadableContent(
                    f"{'last_invocation.' if own else ''}messages[{position}].role",
                    f"got {role!r:.80}, which may ask or answer",
                    " or ".join(map(repr, ROLES)),
                )
        return None

    def _said(self) -> "list[message_pb2.ChatMessage]":
        """Return the agent's messages after the turn's last user message."""
        turn = list(self._of_turn())
        start = _after_last_user(turn)
        return [pb for pb in turn[start:] if pb.role == "assistant"]

    def _is_cut_off(self, pb: "message_pb2.ChatMessage") -> bool:
        return not self._keeps_reasoning and is_cut_off(pb)

    def agent_spoke(self, scope: Extent) -> bool:
        """Return whether an assistant message in the scope has a text, which may be "", a tool call or a refusal."""
        if self.answer is not None:
            return True
        messages = self._said() if scope == "turn" else self._all()
        return any(pb.role == "assistant" and is_answer(pb) and not self._is_cut_off(pb) for pb in messages)

    def answer_of(self, which: Which) -> str | None:
        """Return an assistant text of the turn; None if there is no answer. Raises UnreadableContent.

        which: "last" for `answer`, "first" for the first text, "all" for all texts joined by newlines.
        """
        answer = self.answer
        if which == "last" or answer is None:
            return answer
        said = self._said()
        self._count_blocks(said)
        read = whole_text if self._keeps_reasoning else message_text
        texts = [text for pb in said if (text := read(pb)) and not text.isspace()]
        return "\n".join(texts) if which == "all" else texts[0]

    @property
    def missing_answer(self) -> str:
        """The reason for a missing answer, and the roles or blocks that are there instead.

        "No assistant message found", or "No assistant message with text".
        """
        said = self._said()
        if said:
            cut_off = self._is_cut_off(said[-1])
            if cut_off or "reasoning" in said[-1].metadata.fields:
                end = " without an end: the model was cut off while it was thinking" if cut_off else ""
                finish = self.last_invocation.finish_reason
                more = f" (finish reason {finish[:40]!r})" if finish else ""
                return f"{NO_TEXT}: only reasoning{end}{more}"
            types = sorted({block.type for pb in said for block in pb.blocks.items})
            return f"{NO_TEXT}: only {', '.join(types[:5])[:80]}" if types else NO_TEXT
        roles = [repr(role[:40]) for role in dict.fromkeys(pb.role for pb in self._of_turn())]
        more = f" and {len(roles) - _ROLES_SHOWN} more" if len(roles) > _ROLES_SHOWN else ""
        # Name the roles, because the caller may use unknown ones such as "bot" or "ai".
        return f"{NO_ANSWER}: only of {', '.join(roles[:_ROLES_SHOWN])}{more}" if roles else NO_ANSWER

    @property
    def answer_bytes(self) -> bytes | None:
        """The answer in UTF-8, encoded once for all evaluators that search bytes; None if there is no answer."""
        if self._seen.answer_bytes is None:
            answer = self.answer
            if answer is not None:
                self._seen.answer_bytes = answer.encode("utf-8", "surrogatepass")
        return self._seen.answer_bytes

    @property
    def answer_json(self) -> tuple[Any, str | None]:
        """The answer parsed as strict JSON, and its problem or None. Do not modify the data.

        Raises strict_json.TooLarge for JSON that is larger than evald reads. Do not catch it, so that the result
        is ERROR with code INPUT_TOO_LARGE.
        """
        found = self._seen.answer_json
        if found is None:
            try:
                found = parse_json(self.answer or "", self.check_time), None
            except ValueError as problem:
                found = None, str(problem)
            except TooLarge as problem:
                found = problem
            self._seen.answer_json = found
        if isinstance(found, TooLarge):
            raise TooLarge(str(found))
        return found

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the value of `make()`, computed once for all evaluators of this turn that use the same key."""
        made = self._seen.made
        if key not in made:
            made[key] = make()
        return made[key]  # type: ignore[no-any-return]

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        """The tool calls of the turn, in order. Do not modify the list. Raises UnreadableContent."""
        if self._seen.turn_calls is None:
            turn = self._of_turn()
            start = max(0, len(self._pb.messages) - len(turn))
            own = bool(self._pb.last_invocation.messages)
            messages, asked = self._pb.messages, start
            # What came between the last answer and this turn may hold calls that are not understood.
            while asked and messages[asked - 1].role != "assistant":
                asked -= 1
            reader = CallReader(messages[:asked])
            collect_tool_calls(messages[asked:start], self.check_time, reader=reader, first=asked)
            self._seen.turn_calls = collect_tool_calls(
                turn,
                self.check_time,
                reader=reader,
                first=0 if own else start,
                path="last_invocation.messages" if own else "messages",
            )
        return self._seen.turn_calls

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the whole conversation, in order. Do not modify the list. Raises UnreadableContent."""
        if self._seen.conversation is None:
            self._seen.conversation = Conversation(self._all())
        return self._seen.conversation.tool_calls(self.check_time)

    @property
    def last_invocation(self) -> Invocation:
        """The agent's report about the turn."""
        if self._seen.invocation is None:
            self._seen.invocation = Invocation(self._pb.last_invocation)
        return self._seen.invocation

    @property
    def run_duration_ms(self) -> float | None:
        """The milliseconds that the whole run has taken so far; None if not reported."""
        return duration_ms(self._pb.run_duration) if self._pb.HasField("run_duration") else None

    @property
    def expected(self) -> Expected:
        """The expected answer, as a reference for evaluators."""
        return Expected(self._pb.expected)

    @property
    def scenario(self) -> Scenario | None:
        """The scenario that the conversation tests; None if there is none."""
        return Scenario(self._pb.scenario) if self._pb.HasField("scenario") else None

    @property
    def persona(self) -> Persona | None:
        """The simulated user; None if there is none."""
        return Persona(self._pb.persona) if self._pb.HasField("persona") else None

    @property
    def attempt(self) -> int:
        """The number of the attempt at the case, from 1; 0 if the caller does not number attempts."""
        return self._pb.attempt

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's metadata."""
        return struct_to_dict(self._pb.metadata)

    def __repr__(self) -> str:
        return f"EvaluatorContext(turn {self.turn}, {self.message_count} messages)"


def _after_last_user(messages: "Sequence[message_pb2.ChatMessage]") -> int:
    """Return the index after the last user message; 0 without one."""
    start = len(messages)
    while start and messages[start - 1].role != "user":
        start -= 1
    return start
