"""Messages of the contract in OpenAI's format."""

from typing import Any

from evald.structs import struct_to_dict
from evald.v1 import message_pb2


def to_openai(message: message_pb2.ChatMessage) -> dict[str, Any]:
    """Return a message for an OpenAI-compatible API, which gets no ids and metadata of other systems."""
    found: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    for key in ("tool_call_id", "name", "refusal"):
        if message.HasField(key):
            found[key] = getattr(message, key)
    return found


def _content(message: message_pb2.ChatMessage) -> Any:
    if message.HasField("text"):
        return message.text
    if not message.HasField("blocks"):
        return None
    return [
        {
            "type": block.type,
            **({"text": block.text} if block.HasField("text") else {}),
            **struct_to_dict(block.fields),
        }
        for block in message.blocks.items
    ]
