"""Random secrets that tests plant, and the search for them in outputs."""

import html
import re
from base64 import b64encode
from collections.abc import Iterator
from secrets import token_hex
from urllib.parse import unquote_plus

_UNITS = re.compile(r"\\u00([2-7][0-9a-fA-F])")


class Markers:
    """Secrets by name. Each is found by any 16 characters at its beginning or end, however they are escaped."""

    def __init__(self) -> None:
        self.parts: dict[str, set[str]] = {}

    def plant(self, name: str, between: str = '"/&+') -> str:
        """Return a new secret. between: its middle; by default characters that JSON, URLs, HTML and base64 escape."""
        return self.know(name, f"{token_hex(8)}{between}{token_hex(8)}")

    def know(self, name: str, secret: str) -> str:
        """Add a secret that something else has made."""
        found = self.parts.setdefault(name, set())
        for part in (secret[:16], secret[-16:]):
            assert len(part) == 16, f"{name} is too short to be looked for"
            found |= {part, *_in_base64(part)}
        return secret

    def found_in(self, text: str) -> set[str]:
        """Return the names of the secrets in a text, whole or in part, plain or escaped."""
        plain = (text, unquote_plus(text), html.unescape(text), _UNITS.sub(_character, text))
        return {
            name
            for name, parts in self.parts.items()
            if any(part in spelling for part in parts for spelling in plain)
        }


def _in_base64(part: str) -> Iterator[str]:
    """Yield the base64 forms of a part at each offset in a longer text."""
    for before in range(3):
        encoded = b64encode(bytes(before) + part.encode()).decode().rstrip("=")
        yield encoded[(8 * before + 5) // 6 : (before + 16) * 8 // 6]


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))
