"""Model Context Protocol: the results of tools."""

from collections.abc import Mapping
from typing import Any

from .parts import mcp_content
from .reading import Reading, first


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a `CallToolResult` as a tool message."""
    if "role" in data or "type" in data or not isinstance(data.get("content"), list):
        return None
    if not {"isError", "is_error", "structuredContent", "structured_content"} & data.keys():
        return None
    message: dict[str, Any] = {"role": "tool", "content": mcp_content(data, "")}
    if first(data, "is_error", "isError") is True:
        message["metadata"] = {"is_error": True}
    return Reading([message])
