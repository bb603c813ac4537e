"""Paths into JSON data: `a.b[0].c`, or a JSON Pointer such as `/a/b/0/c` (RFC 6901)."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

DataPath: TypeAlias = tuple[str | int, ...]

MISSING: Final = object()
"""The value that `look_up` returns if nothing is at the path."""

_PART: Final = re.compile(r"([^.\[\]]+)|\[(-?\d{1,9})\]")
_SIMPLE: Final = re.compile(r"(?:[^.\[\]]+|\[-?\d{1,9}\])(?:\.[^.\[\]]+|\[-?\d{1,9}\])*")


def parse_path(text: str) -> DataPath:
    """Parse a path. An index may be negative: [-1] is the last element. Raises ValueError."""
    if text.startswith("/"):
        parts = text[1:].split("/")
        if any(re.search("~(?![01])", part) for part in parts):
            raise ValueError(f"got {text[:100]!r}, wanted a JSON Pointer, in which ~ is followed by 0 or 1")
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)
    if not _SIMPLE.fullmatch(text):
        raise ValueError(
            f"got {text[:100]!r}, wanted a path such as data.messages[-1].text, or a JSON Pointer"
        )
    return tuple(int(match[2]) if match[2] else match[1] for match in _PART.finditer(text))


def look_up(data: Any, path: DataPath) -> Any:
    """Return the value at a path, or MISSING."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(str(part), MISSING)
        elif isinstance(data, list):
            try:
                data = data[int(part)]
            except (ValueError, IndexError):
                return MISSING
        else:
            return MISSING
    return data
