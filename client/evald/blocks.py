"""Content blocks: which contain text, which contain none, and which are not understood.

Evaluators that read the text of a message with a block of an unknown type that holds text get an error, and so do
those that read its tool calls where the block holds a call: if the block were ignored, every check for absence would
pass. Unknown blocks without either are kept.
"""

from typing import TYPE_CHECKING, Any, Final

from .call_shapes import has_call_markup, is_arguments, is_tool_name, unread_calls
from .errors import InvalidInput
from .fields import snake
from .structs import struct_to_dict

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

# The last words of keys whose texts are no text of a message.
_NO_TEXTS: Final = frozenset(
    ("type", "id", "url", "uri", "name", "kind", "format", "status", "state", "role", "signature", "version")
)


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
    """A message contains a text or a tool call that is not understood."""


def block_text(pb: "message_pb2.ChatMessage") -> str:
    """Return the text blocks of a message, joined without a separator. Raises UnreadableContent and TooMany."""
    check_texts(pb)
    return "".join(block.text for block in pb.blocks.items if block.type in TEXT_BLOCKS)


def has_text(pb: "message_pb2.ChatMessage") -> bool:
    """Return whether a message has a text block, even an empty one, or a refusal."""
    return any(block.type in TEXT_BLOCKS or block.type == "refusal" for block in pb.blocks.items)


def check_texts(pb: "message_pb2.ChatMessage") -> None:
    """Raise UnreadableContent for a text that evaluators would ignore, and TooMany for too many blocks."""
    blocks = pb.blocks.items
    if len(blocks) > MAX_BLOCKS:
        raise TooMany("blocks", "content blocks", len(blocks), MAX_BLOCKS)
    for index, block in enumerate(blocks):
        if block.type not in TEXT_BLOCKS:
            problem = "which looks like text" if not is_known(block.type) and _holds_text(block) else ""
        else:
            silent = not block.text and not block.HasField("text")
            problem = "whose text is not in `text`" if silent and _holds_text(block) else ""
        if problem:
            raise UnreadableContent(
                f"blocks.items[{index}].type",
                f"got {block.type!r:.80}, {problem}",
                "text in a block of type text, input_text or output_text",
            )


def unread_block(pb: "message_pb2.ChatMessage") -> tuple[str, str] | None:
    """Return the path and type of the first block with a tool call, which belongs into `tool_calls`; None if none."""
    for index, block in enumerate(pb.blocks.items):
        fields, kind = block.fields.fields, snake(block.type)
        if pb.role == "assistant" and has_call_markup(block.text):
            return f"blocks.items[{index}].text", block.type
        if not fields and (kind in TEXT_BLOCKS or is_known(kind)):
            continue
        data = {"type": block.type or "text", **struct_to_dict(block.fields)}
        typed = not is_known(kind) and not {"tool", "call", "function"}.isdisjoint(kind.split("_"))
        if typed or unread_calls({"block": data}, [calls_of(pb)]):
            return f"blocks.items[{index}].type", block.type
    return None


def calls_of(pb: "message_pb2.ChatMessage") -> dict[str, Any]:
    """Return a message's role, tool calls and answered call in the contract's JSON form."""
    calls = [
        {"id": call.id or None, "name": call.function.name, "arguments": call.function.arguments}
        for call in pb.tool_calls
    ]
    return {"role": pb.role, "tool_calls": calls, "tool_call_id": pb.tool_call_id or None}


def is_known(kind: str) -> bool:
    """Return whether a type of blocks is known to contain neither a message's text nor a tool call."""
    kind = snake(kind)
    return kind in KNOWN_BLOCKS or kind.startswith("data_")


def _holds_text(block: "message_pb2.ContentBlock") -> bool:
    """Return whether a block has a text, at any depth, beside names, ids, addresses and a call's arguments."""
    if block.text:
        return True
    waiting: list[Any] = [struct_to_dict(block.fields)] if block.fields.fields else []
    while waiting:
        value = waiting.pop()
        items = value.items() if isinstance(value, dict) else (("", item) for item in value)
        for key, item in items:
            name = snake(key)
            if name.rpartition("_")[2] in _NO_TEXTS or is_tool_name(name) or is_arguments(name):
                continue
            if isinstance(item, str) and item.strip():
                return True
            if isinstance(item, dict | list):
                waiting.append(item)
    return False
