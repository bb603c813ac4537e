"""A server with a web port, and a client of its API."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from evald_server.testing import async_server

CHAT = [{"role": "user", "content": "I have to move it."}, {"role": "assistant", "content": "Done: BK-12345"}]
REGEX = {"type": "regex", "config": {"pattern": "BK-[0-9]+"}}
REPLAY = {"turns": [{"messages": [{"role": "assistant", "content": "Done: BK-12345"}]}]}


@asynccontextmanager
async def api(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve, and give a client whose URLs begin with /api."""
    async with async_server(web="127.0.0.1:0", **settings) as served:
        address = f"http://{served.web_address}"
        async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as client:
            yield client


def ndjson(lines: Iterable[Any]) -> dict[str, Any]:
    """The arguments of a request whose body is JSON Lines; texts are lines as they are."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return {"content": text, "headers": {"content-type": "application/x-ndjson"}}


def lines_of(response: httpx.Response) -> list[Any]:
    """The lines of a streamed answer."""
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]
