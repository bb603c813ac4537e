"""A server with a web port, and a client of its API."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from evald.evaluator import Evaluator
from evald_server.testing import async_server

CHAT = [{"role": "user", "content": "I have to move it."}, {"role": "assistant", "content": "Done: BK-12345"}]
REGEX = {"type": "regex", "config": {"pattern": "BK-[0-9]+"}}
REPLAY = {"messages": CHAT}


@asynccontextmanager
async def api(*evaluators: type[Evaluator], **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server, and yield a client of its web port."""
    async with async_server(*evaluators, web="127.0.0.1:0", **settings) as served:
        address = f"http://{served.web_address}"
        # Without TLS there is nothing to verify, and to load the certificates takes longer than a server's start.
        async with httpx.AsyncClient(base_url=address, timeout=30, trust_env=False, verify=False) as client:
            yield client


def ndjson(lines: Iterable[Any]) -> dict[str, Any]:
    """Return the arguments of a request with a body of JSON Lines; texts are raw lines."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return {"content": text, "headers": {"content-type": "application/x-ndjson"}}


def lines_of(response: httpx.Response) -> list[Any]:
    """Return the lines of a streamed answer."""
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]
