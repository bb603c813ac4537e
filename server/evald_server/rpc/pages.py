"""Pages of lists: their size, and the token with which the next one is asked for."""

import base64
import re
from contextlib import suppress
from typing import Final

from .errors import invalid

_LARGEST: Final = 1000


def page_size(asked: int, usual: int = 100) -> int:
    """Return the size of a page. asked: 0 for the usual one. Raises CallError."""
    if asked < 0:
        raise invalid("page_size", f"got {asked}, wanted 0 or more")
    return min(asked or usual, _LARGEST)


def page_token(place: str) -> str:
    """Return the token of the page that begins after a place."""
    return base64.urlsafe_b64encode(place.encode()).decode()


def read_token(token: str, form: str = ".*") -> str:
    """Return the place of a token, "" for the first page. form: pattern of a place. Raises CallError."""
    if not token:
        return ""
    with suppress(ValueError):
        place = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        if re.fullmatch(form, place, re.DOTALL):
            return place
    raise invalid("page_token", "not a token that this server gave; start without one")
