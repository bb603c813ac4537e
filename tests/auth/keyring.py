"""Servers that require API keys, and their keys."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evald_server.auth.keys import add_key, new_key
from evald_server.auth.principal import Role

from ..rpc.live import Live, serving

Metadata = tuple[tuple[str, str], ...]


def make_key(
    path: Path, principal: str, *roles: Role, types: tuple[str, ...] = (), expires: float = 60
) -> str:
    """Add a key to a keys file and return its text."""
    text, key = new_key(principal, roles, types=types, expires=time.time() + expires)
    add_key(path, key)
    return text


def bearer(token: str) -> Metadata:
    """Return the metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)


@asynccontextmanager
async def guarded(path: Path, **settings: Any) -> AsyncIterator[Live]:
    """Run a server that requires the keys in a file."""
    async with serving(keys_file=path, **settings) as live:
        yield live
