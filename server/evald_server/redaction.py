"""Remove secrets from texts that leave the server."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

_REDACTED: Final = "[redacted]"

# Text that looks like a key without being a configured one: an endpoint may repeat a part of the key that it
# received, masked in the middle.
_LOOKS_LIKE_KEY: Final = re.compile(
    r"\b(?:sk|pk|gsk|xai|key)-[\w*-]{8,}"
    r"|(?i:\bbearer\s+)[\w.*~+/=-]{8,}"
    r"|\bevald_[a-z0-9]{12}_[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # a JSON Web Token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY[\w+/=\s-]*"
)

# A shorter secret is too likely to be part of an ordinary word.
_MIN_SECRET_LENGTH: Final = 6


_SECRET_WORDS: Final = (
    "token",
    "secret",
    "key",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "jwt",
    "session",
    "sessionid",
    "signature",
)

# Escapes of ASCII characters only, because secrets are ASCII.
_ESCAPE: Final = re.compile(
    r"\\u(?P<unit>00[2-7][0-9a-fA-F])|\\(?P<sign>[\"\\/])|%(?P<byte>[2-7][0-9a-fA-F])|&#?\w{1,10};"
)
# Levels of escapes to decode: JSON inside a JSON string has escaped escapes.
_MAX_ESCAPES: Final = 3


class Redactor:
    """Removes the configured API keys from everything that leaves the server."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {spelling for secret in secrets for spelling in spellings(secret)}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def redact_text(self, text: str) -> str:
        """Return an endpoint's text without the configured keys and without anything that looks like a key."""
        return without_keys(self._without_known(text))

    def redact_json(self, data: Any) -> Any:
        """Return JSON-like data without the configured keys."""
        return data if self._known is None else self._clean(data)

    def _clean(self, data: Any) -> Any:
        """Copy the data level by level: an endpoint may nest them deeper than Python's recursion limit."""
        root = [data]
        copies: list[Any] = [root]
        while copies:
            copy = copies.pop()
            for key, value in list(copy.items() if isinstance(copy, dict) else enumerate(copy)):
                if isinstance(value, str):
                    copy[key] = self._without_known(value)
                elif isinstance(value, Mapping):
                    copy[key] = {self._without_known(name): inner for name, inner in value.items()}
                    copies.append(copy[key])
                elif isinstance(value, list | tuple):
                    copy[key] = list(value)
                    copies.append(copy[key])
        return root[0]

    def _without_known(self, text: str) -> str:
        if self._known is None:
            return text
        clean = plain = self._known.sub(_REDACTED, text)
        for _ in range(_MAX_ESCAPES):
            before, plain = plain, _ESCAPE.sub(_unescaped, plain)
            if plain == before:
                break
            if self._known.search(plain):
                clean = plain = self._known.sub(_REDACTED, plain)
        return clean


def names_secret(name: str) -> bool:
    """Return whether the value behind a name is a secret, judged by the words of the name."""
    return any(part.endswith(_SECRET_WORDS) for part in re.split(r"[-_.]", name.lower()))


def without_keys(text: str) -> str:
    """Return a text without anything that looks like a key, a token or a private key."""
    return _LOOKS_LIKE_KEY.sub(_REDACTED, text)


def spellings(secret: str) -> set[str]:
    """Return a secret and its encodings in JSON, URLs, HTML and base64; an empty set for a short secret."""
    if len(secret) < _MIN_SECRET_LENGTH:
        return set()
    in_json = json.dumps(secret)[1:-1]
    in_addresses = (quote(secret, safe=""), quote(secret), quote_plus(secret))
    return {
        secret,
        in_json,
        in_json.replace("/", r"\/"),
        *in_addresses,
        *(re.sub("%..", lambda match: match[0].lower(), one) for one in in_addresses),
        html.escape(secret),
        html.escape(secret, quote=False),
        *_in_base64(secret.encode()),
    }


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield the base64 encodings of a secret inside a longer text, for each of the three possible alignments.

    Omits the characters at the edges that also encode bits of the surrounding text.
    """
    for before in range(3):
        encoded = b64encode(bytes(before) + secret).decode()
        whole = encoded[(8 * before + 5) // 6 : (before + len(secret)) * 8 // 6]
        yield whole
        yield whole.replace("+", "-").replace("/", "_")


def _unescaped(match: re.Match[str]) -> str:
    number = match["unit"] or match["byte"]
    return chr(int(number, 16)) if number else match["sign"] or html.unescape(match[0])
