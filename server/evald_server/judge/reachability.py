"""Whether endpoints can be reached, found out without asking them anything."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

_PROXIES: Final = ("https_proxy", "http_proxy", "all_proxy")
_PORTS: Final = {"http": 80, "https": 443}

# As long as a request gets for its connection.
_PATIENCE_SECONDS: Final = 5.0


def behind_proxy(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether requests may go through a proxy, so that a connection of our own would prove nothing."""
    return any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES)


async def reachable(base_url: str) -> bool:
    """Whether something listens at the address. Opens a connection and sends nothing."""
    parts = urlsplit(base_url)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
