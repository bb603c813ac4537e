"""Where a turn lies in its conversation: at the end, before a simulator's end mark."""

from typing import TYPE_CHECKING, Final

from .end_marks import end_mark_index
from .errors import InvalidInput

if TYPE_CHECKING:
    from .messages import Messages
    from .v1 import context_pb2

_TAIL: Final = "exactly the last messages of the conversation; if the turn is everything after the last user message, leave them out"


def settle(pb: "context_pb2.EvaluatorContext") -> None:
    """Remove the end mark of the conversation. Raises InvalidInput if the turn is not the conversation's end."""
    drop_end_mark(pb.messages)
    turn = pb.last_invocation.messages
    if turn:
        drop_end_mark(turn)
        if pb.messages:
            check_tail(turn, pb.messages)


def drop_end_mark(messages: "Messages", first: int = 0) -> None:
    """Remove the end marks at the end, which are no questions. first: index of the first message that may be one."""
    index = end_mark_index(messages)
    if index is None:
        return
    for position in range(len(messages) - 1, max(index, first) - 1, -1):
        if messages[position].role == "user":
            del messages[position]


def check_tail(turn: "Messages", conversation: "Messages", first: int = 0) -> None:
    """Raise InvalidInput if a turn's messages are not the last ones of the conversation.

    Otherwise checks of one of the two would not see messages that only the other has.

    first: index of the turn's first message: those before it belong to earlier turns.
    """
    before = len(conversation) - len(turn)
    if before < first:
        of = "messages" if not first else "new messages"
        raise InvalidInput(
            "last_invocation.messages",
            f"got {len(turn)} messages, more than the {len(conversation) - first} of {of}",
            _TAIL,
        )
    for index, message in enumerate(turn):
        if message != conversation[before + index]:
            raise InvalidInput(
                f"last_invocation.messages[{index}]",
                f"differs from message {before + index} of the conversation",
                _TAIL,
            )


def begin_turn(pb: "context_pb2.EvaluatorContext", first: int, invocation: "context_pb2.Invocation") -> None:
    """Make an invocation, and the messages from `first` on, the turn of a growing conversation. Raises InvalidInput.

    Without a message of the user the turn would be what follows the last one, which is an earlier turn's, so the
    turn's messages are set; for a turn that brings none, a user message without content is added.
    """
    drop_end_mark(pb.messages, first)
    drop_end_mark(invocation.messages)
    check_tail(invocation.messages, pb.messages, first)
    pb.last_invocation.CopyFrom(invocation)
    if invocation.messages:
        return
    new = pb.messages[first:]
    if not new:
        pb.messages.add(role="user")
    elif all(message.role != "user" for message in new):
        pb.last_invocation.messages.extend(new)
