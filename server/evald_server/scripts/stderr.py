"""What a script wrote to its standard error, as an error may show it."""

import re
from collections.abc import Iterable
from typing import Final

_MOST_CHARACTERS: Final = 2000

# What steers a terminal: CSI and OSC sequences, and escapes of one character.
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# A shorter value stands in every text by chance.
_SHORTEST_SECRET: Final = 6
_REDACTED: Final = b"[redacted]"


def tail(data: bytes) -> str:
    """The last 2,000 characters, without anything that would steer a terminal or a log viewer."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    text = _CONTROL.sub("", text).strip()
    return text if len(text) <= _MOST_CHARACTERS else "…" + text[-_MOST_CHARACTERS:]


def redacted(data: bytes, secrets: Iterable[str]) -> bytes:
    """The bytes without these values, which the operator gave the script and nobody else may see."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            data = data.replace(secret.encode(), _REDACTED)
    return data
