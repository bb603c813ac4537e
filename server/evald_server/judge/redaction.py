"""Keeps API keys out of everything that leaves the server."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

HIDDEN: Final = "[redacted]"

# What looks like a key although nobody configured it: an endpoint may repeat a part of the one it got,
# masked in the middle.
_LOOKS_LIKE_KEY: Final = re.compile(r"\b(?:sk|pk|gsk|xai|key)-[\w*-]{8,}|(?i:\bbearer\s+)[\w.*~+/=-]{8,}")

# Shorter ones are too likely to be a part of an ordinary word.
_SHORTEST: Final = 6


class Redactor:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """A foreign text, without the configured keys and without what looks like one."""
        return _LOOKS_LIKE_KEY.sub(HIDDEN, self._without_known(text))

    def request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """JSON-like data, without the configured keys."""
        if self._known is None:
            return dict(body)
        cleaned: dict[str, Any] = self._clean(body)
        return cleaned

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._without_known(value)
        if isinstance(value, Mapping):
            return {key: self._clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(inner) for inner in value]
        return value

    def _without_known(self, text: str) -> str:
        return text if self._known is None else self._known.sub(HIDDEN, text)
