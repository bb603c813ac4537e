"""Makes untrusted text safe to print.

An escape sequence in a conversation or a server's message could rewrite lines that are printed already,
and a line that begins with "::" is a command for some CI systems: pass all such text through `clean`.
"""

import json
import re
import sys
from typing import Any

# C0 and C1 controls, DEL, line separators, bidirectional overrides and isolates, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\s*[\r\n]+\s*")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def clean(text: str, limit: int = 2000) -> str:
    """Return the text as one printable line: line ends become spaces, control characters are escaped.

    limit: maximum number of characters; longer text is cut and ends with "...".
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return _UNSAFE.sub(_escape, _LINE_ENDS.sub(" ", text.strip()).replace("\t", " "))


def to_json(data: Any, *, indent: int | None = None) -> str:
    """Return JSON that is safe to print: non-ASCII text stays readable, control characters are escaped."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=indent)
    # Control characters within strings are escaped already, so a line end comes from the indentation.
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def print_json(data: Any, *, indent: int | None = None) -> None:
    """Print JSON to standard output, without wrapping."""
    sys.stdout.write(to_json(data, indent=indent) + "\n")
    sys.stdout.flush()
