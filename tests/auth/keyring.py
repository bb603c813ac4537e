"""Servers that ask for API keys, and keys for them."""

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
    """A key that a file of keys now has."""
    text, key = new_key(principal, roles, types=types, expires=time.time() + expires)
    add_key(path, key)
    return text


def bearer(token: str) -> Metadata:
    """The metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)


@asynccontextmanager
async def guarded(path: Path, **settings: Any) -> AsyncIterator[Live]:
    """A server that asks for the keys of a file."""
    async with serving(keys_file=path, **settings) as live:
        yield live
