"""Content blocks: which contain text, which contain none, and which are unreadable.

A block of an unknown type that resembles a text or a tool call is rejected:
if evaluators ignored it, every check for absence would pass.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidInput

if TYPE_CHECKING:
    from .v1 import message_pb2

# The types of blocks whose text belongs to the message's text.
TEXT_BLOCKS: Final = frozenset(("text", "input_text", "output_text", ""))

# 10,000 is enough for a long document in paragraphs; reading them takes a few milliseconds.
MAX_BLOCKS: Final = 10_000

# Types of blocks without message text and tool calls: they stay unchanged.
KNOWN_BLOCKS: Final = frozenset(
    (
        "image",
        "image_url",
        "input_image",
        "audio",
        "audio_url",
        "input_audio",
        "output_audio",
        "video",
        "video_url",
        "input_video",
        "file",
        "input_file",
        "document",
        "document_url",
        "binary",
        "text_plain",  # LangChain: a document
        "blob",
        "uri",
        "media",
        "inline_data",
        "file_data",
        "resource",
        "resource_link",
        "search_result",
        "source",
        "source_url",
        "source_document",
        "container_upload",
        "cache_point",
        "step_start",
        "fallback",
        "compaction",
        "tool_reference",
        "refusal",
        "reasoning",
        "thinking",
        "redacted_thinking",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_approval_request",
        "tool_approval_response",
    )
)

_TEXT_KEYS: Final = (
    "text",
    "content",
    "value",
    "markdown",
    "html",
    "parts",
    "message",
    "output_text",
    "transcript",
)
_CALL_KEYS: Final = (
    "arguments",
    "args",
    "input",
    "function",
    "function_call",
    "functionCall",
    "tool_calls",
    "toolCalls",
    "tool_call",
    "toolCall",
    "tool_call_id",
    "toolCallId",
    "tool_name",
    "toolName",
    "tool_use_id",
    "toolUseId",
)
_CALL_WORDS: Final = ("tool", "call", "function")


class TooMany(InvalidInput):
    """A request contains too many items of a kind. what: the kind. size, limit: actual and maximum number."""

    def __init__(self, path: str, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(path, f"{size} {what}", f"at most {limit}")

    def below(self, parent: str) -> "TooMany":
        """Return the same error with its path below a parent path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return TooMany(f"{parent}{dot}{self.path}", self.what, self.size, self.limit)

    def __reduce__(self) -> tuple[Any, ...]:
        return (TooMany, (self.path, self.what, self.size, self.limit))


class UnreadableContent(InvalidInput):
    """A message contains a content block of an unknown type that resembles a text or a tool call."""


def resemblance(kind: str, keys: Mapping[str, Any]) -> str:
    """Return a description of what a block of an unknown type resembles; "" if neither text nor tool call."""
    if any(word in kind for word in _CALL_WORDS) or any(keys.get(key) is not None for key in _CALL_KEYS):
        return "which looks like a tool call"
    if "text" in kind or any(isinstance(keys.get(key), str | list) for key in _TEXT_KEYS):
        return "which looks like text"
    return ""


def block_text(pb: "message_pb2.ChatMessage") -> str:
    """Return the text blocks of a message, joined without a separator. Raises UnreadableContent and TooMany."""
    check_blocks(pb)
    return "".join(block.text for block in pb.blocks.items if block.type in TEXT_BLOCKS)


def has_text(pb: "message_pb2.ChatMessage") -> bool:
    """Return whether a message has a text block, even an empty one, or a refusal."""
    return any(block.type in TEXT_BLOCKS or block.type == "refusal" for block in pb.blocks.items)


def check_blocks(pb: "message_pb2.ChatMessage") -> None:
    """Raise UnreadableContent for a block that evaluators would ignore, and TooMany for too many blocks."""
    blocks = pb.blocks.items
    if len(blocks) > MAX_BLOCKS:
        raise TooMany("blocks", "content blocks", len(blocks), MAX_BLOCKS)
    for index, block in enumerate(blocks):
        kind = block.type
        if kind in TEXT_BLOCKS:
            if not block.text and not block.HasField("text"):
                _check(block, kind, index)
        elif kind not in KNOWN_BLOCKS:
            _check(block, kind, index)


def _check(block: "message_pb2.ContentBlock", kind: str, index: int) -> None:
    """Raise UnreadableContent for a block whose text or tool call evaluators would ignore."""
    fields = block.fields.fields
    keys: dict[str, Any] = {key: True for key in _CALL_KEYS if key in fields}
    keys |= {
        key: ""
        for key in _TEXT_KEYS
        if key in fields and fields[key].WhichOneof("kind") in ("string_value", "list_value")
    }
    if block.HasField("text"):
        keys["text"] = block.text
    problem = resemblance(kind.lower().replace("-", "_"), keys) if kind not in TEXT_BLOCKS else ""
    if not problem and kind in TEXT_BLOCKS and keys:
        problem = "whose text is not in `text`"
    if problem:
        raise UnreadableContent(
            f"blocks.items[{index}].type",
            f"got {kind!r:.80}, {problem}",
            "text in a block of type text, input_text or output_text, and tool calls in tool_calls; "
            "or send the messages as messages_json, which supports the block types of other libraries",
        )
