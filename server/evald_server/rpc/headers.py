"""Headers of connectors and personas, as callers may see them."""

import re
from collections.abc import MutableMapping
from typing import Final

_MASK: Final = "***"

# A value that holds nothing but names of environment variables, and what stands around them: "Bearer ${NAME}".
_REFERENCES: Final = re.compile(r"(?:[A-Za-z]+ )?(?:\$\{[A-Za-z0-9_]+\})+")


def mask(headers: MutableMapping[str, str]) -> None:
    """Replace values that may be secrets. Names of environment variables stay readable."""
    for name in list(headers):
        if not _REFERENCES.fullmatch(headers[name]):
            headers[name] = _MASK


def unmask(headers: MutableMapping[str, str], stored: MutableMapping[str, str]) -> None:
    """Put the stored values in place of masks that a caller has sent back."""
    for name in list(headers):
        if headers[name] == _MASK and name in stored:
            headers[name] = stored[name]
