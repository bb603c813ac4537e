"""Functions that make untrusted text safe to print.

An escape sequence in a conversation or a server's message could rewrite earlier lines of the terminal, and a
line that starts with "::" is a command for some CI systems. Therefore pass all such text through `clean`.
"""

import json
import sys
from typing import Any

from evald_server.untrusted import UNSAFE
from evald_server.untrusted import one_line as clean

__all__ = ["clean", "print_json", "to_json"]


def to_json(data: Any, *, indent: int | None = None) -> str:
    """Return JSON that is safe to print: non-ASCII text stays readable, control characters are escaped."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent)
    # json.dumps has escaped control characters within strings, so a newline comes from the indentation.
    return UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def print_json(data: Any, *, indent: int | None = None) -> None:
    """Print JSON to standard output, without wrapping."""
    sys.stdout.write(to_json(data, indent=indent) + "\n")
    sys.stdout.flush()
