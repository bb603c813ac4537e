"""Recorded answers: whether a conversation is the recording of its case (the same questions, in the same turns)."""

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald.blocks import TooMany, UnreadableContent
from evald.chat import message_text
from evald.errors import InvalidInput
from evald.fields import nearest
from evald.messages import fill_messages
from evald.shapes import read_one
from evald.v1 import context_pb2, message_pb2, suite_service_pb2

from .file_models import ABOUT_KEYS
from .recorded_turns import ends_unanswered, turn_bounds

_BESIDE: Final = ("system", "developer", "tool")
_KNOWN: Final = ("text", "messages", "role", "error")
_SHOWN: Final = 60


class WrongRecording(ValueError):
    """A recording is not one of the case. Its text is the first difference."""


class _Group(NamedTuple):
    """One turn: the texts of the user, and those of the agent. agent: None for an answer that is to be evaluated."""

    user: tuple[str, ...]
    agent: tuple[str, ...] | None


class Questions:
    """The questions of a case.

    turns: number of its turns. last: text of the user's last message, for comparison; None if the case asks nothing,
    and each recording is a whole conversation. marks: the end marks of its suite.
    """

    def __init__(self, case: suite_service_pb2.SuiteCase, marks: Sequence[str]) -> None:
        self.turns = len(case.turns)
        self.marks = marks
        self._all: list[list[_Group]] = []
        if case.turns[0].input:
            # A recording may leave out the messages before the first turn.
            self._all = [_groups_of_case(before, case.turns) for before in (case.messages, case.messages[:0])]
        said = [text for groups in self._all[:1] for group in groups for text in group.user]
        self.last = said[-1] if said else None

    def answers_in(self, messages: Sequence[Any]) -> list[tuple[int, int]]:
        """Return start and end of the messages of each turn. Raises WrongRecording, and InvalidInput for unreadable messages."""
        bounds = turn_bounds(messages, self.marks)
        if not self._all:
            return bounds[-1:]
        if ends_unanswered(messages, self.marks):
            raise WrongRecording("its last message is one of the user, which has no answer")
        groups = [_group(messages[start:end]) for start, end in bounds]
        differences = [_difference(groups, wanted) for wanted in self._all]
        if all(differences):
            raise WrongRecording(differences[0] if len(groups) > self.turns else differences[-1])
        return bounds[-self.turns :]

    def check_asked(self, asked: Any) -> None:
        """Check what the user said before answers that are recorded without it: a text, or messages. Raises as above.

        A text is the user's last message.
        """
        if not self._all:
            return
        if isinstance(asked, str):
            if normal(asked) != self.last:
                raise WrongRecording(f"it asks {_quoted(normal(asked))}, the case {_quoted(self.last or '')}")
            return
        said = [text for role, text in _texts(asked) if role == "user"]
        known = [[text for group in groups for text in group.user] for groups in self._all]
        if said not in known:
            raise WrongRecording(f"it asks {_quoted(*said)}, the case {_quoted(*known[-1])}")


def normal(text: str) -> str:
    """Return a text as recordings and cases are compared: composed characters, single spaces, trimmed."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def last_asked(asked: Any) -> str | None:
    """Return the text of a question, or of the last one in a list of messages; None if there is none.

    Raises InvalidInput.
    """
    if isinstance(asked, str):
        return normal(asked)
    end = turn_bounds(asked)[-1][1]
    return next((text for role, text in reversed(_texts(asked[:end])) if role == "user"), None)


def data_as_text(answer: Any, path: str) -> Any:
    """Return the JSON text of an answer that is data; text, messages and objects with them unchanged.

    Raises InvalidInput for a number beyond a double.
    """
    if not _is_data(answer):
        return answer
    try:
        return json.dumps(answer, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InvalidInput(path, "a number beyond a double", "a number, or its text") from None


def _is_data(answer: Any) -> bool:
    if isinstance(answer, list):
        pair = len(answer) == 2 and answer[0] in ("assistant", "ai", "user", "human", "system", "tool")
        return bool(answer) and not pair and all(map(_is_no_message, answer))
    if isinstance(answer, Mapping):
        # A misspelt key is no data; "message" is often a key of an answer.
        misspelt = bool(answer) and all(
            key in ABOUT_KEYS or (key != "message" and nearest(key, _KNOWN[:2], cutoff=0.8)) for key in answer
        )
        return not misspelt and _is_no_message(answer)
    return isinstance(answer, int | float)


def _is_no_message(value: Any) -> bool:
    return not isinstance(value, Mapping) or not (any(key in value for key in _KNOWN) or _is_response(value))


def _is_response(value: Mapping[str, Any]) -> bool:
    """Return whether the SDK knows the value as a response or a message of a framework."""
    try:
        return read_one(value) is not None
    except InvalidInput:
        return True


def _texts(messages: Iterable[Any]) -> list[tuple[str, str]]:
    """Return role and text of the messages of user and agent, in any format that the SDK reads. Raises InvalidInput."""
    found = context_pb2.Invocation()
    fill_messages(list(messages), found.messages)
    return _texts_of(found.messages)


def _texts_of(messages: Iterable[message_pb2.ChatMessage]) -> list[tuple[str, str]]:
    """As above. A message with an unknown role counts as the agent's."""
    return [
        (one.role if one.role == "user" else "agent", normal(_text(one)))
        for one in messages
        if one.role not in _BESIDE
    ]


def _text(message: message_pb2.ChatMessage) -> str:
    try:
        return message_text(message)
    except (UnreadableContent, TooMany):  # compared as it is
        return str(message.blocks)


def _group(messages: Sequence[Any]) -> _Group:
    said = _texts(messages)
    return _Group(*(tuple(text for role, text in said if role == who) for who in ("user", "agent")))


def _groups_of_case(
    before: Sequence[message_pb2.ChatMessage], turns: Sequence[suite_service_pb2.SuiteTurn]
) -> list[_Group]:
    groups: list[_Group] = []
    user: list[str] = []
    agent: list[str] = []
    said: list[tuple[str, str | None]] = list(_texts_of(before))
    for turn in turns:
        said += [*_texts_of(turn.input), ("agent", None)]
    for role, text in said:
        if role == "user":
            if agent:
                groups.append(_Group(tuple(user), tuple(agent)))
                user, agent = [], []
            user.append(text or "")
        elif text is not None:
            agent.append(text)
        else:
            groups.append(_Group(tuple(user), None))
            user, agent = [], []
    return groups


def _difference(groups: Sequence[_Group], wanted: Sequence[_Group]) -> str:
    """Return the first difference between a recording and a case; "" without one."""
    if groups and not groups[0].user and (not wanted or wanted[0].user):
        return "it begins with a message of the agent; if it belongs to the case, write it in `messages` of the case"
    if len(groups) != len(wanted):
        return f"it has {len(groups)} turns, the case {len(wanted)}"
    for number, (group, other) in enumerate(zip(groups, wanted, strict=True), start=1):
        if group.user != other.user:
            return f"in turn {number} it asks {_quoted(*group.user)}, the case {_quoted(*other.user)}"
        # Messages with tool calls alone have no text.
        said, known = ([text for text in one.agent or () if text] for one in (group, other))
        if other.agent is not None and said != known:
            return f"in turn {number} the agent says {_quoted(*said)}, in `messages` of the case {_quoted(*known)}"
    return ""


def _quoted(*texts: str) -> str:
    cut = (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in texts)
    return " and ".join(f'"{text}"' for text in cut) or "nothing"
