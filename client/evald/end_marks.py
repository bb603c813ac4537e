"""Marks with which a simulated user ends a conversation: the message that ends with one asks nothing."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from .blocks import TooMany, UnreadableContent
from .chat import message_text

if TYPE_CHECKING:
    from .messages import Messages

END_MARKS: Final = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###", "TERMINATE")
"""The marks of tau-bench's and AutoGen's users."""

BESIDE_TURNS: Final = ("system", "developer")
"""Roles whose messages neither ask nor answer."""


def is_end_mark(text: str, marks: Iterable[str] = END_MARKS) -> bool:
    """Return whether the text of a user message ends the conversation.

    The last line is a mark, or ends with one: simulators add it to a good-bye ("Thanks! ###STOP###"). A mark that is a
    word must be the whole line, because a question may end with the word.
    """
    line = text.rstrip().rpartition("\n")[2].strip()
    return any(line == mark or (line.endswith(mark) and not mark[:1].isalnum()) for mark in marks if mark)


def end_mark_index(messages: "Messages", marks: Iterable[str] = END_MARKS) -> int | None:
    """Return the index of the user message that ends the conversation, of several the first; None without one."""
    found = None
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role in BESIDE_TURNS:
            continue
        if messages[index].role != "user":
            break
        try:
            if not is_end_mark(message_text(messages[index]), marks):
                break
        except (UnreadableContent, TooMany):
            break
        found = index
    return found
