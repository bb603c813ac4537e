"""Make text of callers, agents and plugins safe to show."""

import re
from typing import Final

UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""C0 and C1 controls, DEL, line separators, bidirectional marks, overrides and isolates, lone surrogates."""

# Characters that XML 1.0 cannot hold, even escaped. Source: W3C, Extensible Markup Language (XML) 1.0, 2.2.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_ENDS: Final = re.compile(r"\s*[\r\n]+\s*")


def xml_text(text: str) -> str:
    """Return the text with U+FFFD for characters that XML cannot hold. Does not escape markup."""
    return _NOT_XML.sub("\ufffd", text)


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, as escapes. JSON escapes can write them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text: str, limit: int = 100) -> str:
    """Return the text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: str) -> str:
    """Return the text with unsafe characters as visible escapes; line ends and tabs stay."""
    return UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 2000) -> str:
    """Return the text as one printable line: line ends become spaces, unsafe characters visible escapes.

    limit: maximum number of characters; longer text is cut and ends with "...".
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return visible(_LINE_ENDS.sub(" ", text.strip()).replace("\t", " "))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in (9, 10):
        return match[0]
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
