"""Pagination of lists: page sizes, pages and page tokens."""

import base64
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from evald_server.call_errors import invalid

Item = TypeVar("Item")
Place = TypeVar("Place")

_LARGEST: Final = 1000

# Maximum size of a page, unless its first item is larger: far below the 4 MiB that gRPC clients accept.
_PAGE_BYTES: Final = 2 << 20
# Maximum items per read, so that at most this many items of the largest size are in memory.
_READ_AT_ONCE: Final = 50


def page_size(asked: int, usual: int = 100) -> int:
    """Return the size of a page. asked: the requested size; 0 for the default `usual`. Raises CallError."""
    if asked < 0:
        raise invalid("page_size", f"got {asked}, wanted 0 or more")
    return min(asked or usual, _LARGEST)


def page_token(place: str) -> str:
    """Return the token of the page after a place in the list."""
    return base64.urlsafe_b64encode(place.encode()).decode()


def read_token(token: str, form: str = ".*") -> str:
    """Return the place in a token; "" for the first page. form: regular expression of a place. Raises CallError."""
    if not token:
        return ""
    with suppress(ValueError):
        place = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        if re.fullmatch(form, place, re.DOTALL):
            return place
    raise invalid("page_token", "not a page token of this server; start from the first page, without a token")


async def read_page(
    size: int,
    after: Place,
    read: Callable[[Place, int], Awaitable[Sequence[Item]]],
    place_of: Callable[[Item], Place],
    size_of: Callable[[Item], int],
) -> tuple[list[Item], bool]:
    """Return a page and whether more items follow. The page has at most `size` items and at least one if any is left.

    after: place of the last item of the previous page. read: called with a place and a limit, returns the items after
    the place. size_of: returns an item's bytes.
    """
    page: list[Item] = []
    held, limit = 0, min(size + 1, _READ_AT_ONCE)
    while True:
        items = await read(after, limit)
        for item in items:
            held += size_of(item)
            if page and (len(page) == size or held > _PAGE_BYTES):
                return page, True
            page.append(item)
        if len(items) < limit:
            return page, False
        after = place_of(page[-1])
