"""Removes secrets from texts that leave the server."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_REDACTED: Final = "[redacted]"

# What looks like a key although nobody configured it: an endpoint may repeat a part of the one it got,
# masked in the middle.
_LOOKS_LIKE_KEY: Final = re.compile(r"\b(?:sk|pk|gsk|xai|key)-[\w*-]{8,}|(?i:\bbearer\s+)[\w.*~+/=-]{8,}")

# Shorter secrets are too likely to be a part of an ordinary word.
_MIN_SECRET_LENGTH: Final = 6


class Redactor:
    """Removes the configured API keys from everything that leaves the server."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _MIN_SECRET_LENGTH}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def redact_text(self, text: str) -> str:
        """Return a text of an endpoint's without the configured keys and whatever looks like a key."""
        return _LOOKS_LIKE_KEY.sub(_REDACTED, self._without_known(text))

    def redact_json(self, data: Any) -> Any:
        """Return JSON-like data without the configured keys."""
        return data if self._known is None else self._clean(data)

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._without_known(value)
        if isinstance(value, Mapping):
            return {self._clean(key): self._clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(inner) for inner in value]
        return value

    def _without_known(self, text: str) -> str:
        return text if self._known is None else self._known.sub(_REDACTED, text)
