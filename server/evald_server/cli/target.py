"""The server that a command talks to: the one that was named, or one that lives as long as the command."""

import argparse
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from evald_server.loop import event_loop

from .exits import usage_error
from .logs import log_briefly
from .serve import settings_of, started

if TYPE_CHECKING:
    from evald import AsyncClient


def run_async(main: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end."""
    with event_loop() as runner:
        return runner.run(main)


@asynccontextmanager
async def connected(args: argparse.Namespace) -> AsyncIterator["AsyncClient"]:
    """A client of `--server`, else of EVALD_SERVER, else of a server inside this process.

    Options for the server inside go before EVALD_SERVER, because the command
    line goes before the environment.
    """
    from evald import AsyncClient

    flags = {"plugins": "--plugin", "code_allow": "--allow-code", "config": "--config"}
    inside = next((option for option in flags if getattr(args, option)), None)
    if inside and args.server:
        flag = flags[inside]
        raise usage_error(
            f"{flag} is for the server inside the command, but --server {args.server} is given as well",
            f"leave --server out, or load it there: evald serve {flag} ...",
        )
    address = args.server or (None if inside else os.environ.get("EVALD_SERVER"))
    if address:
        async with AsyncClient(address) as client:
            yield client
        return

    log_briefly()
    app = await started(settings_of(args, listen="127.0.0.1:0", http=""))
    try:
        async with AsyncClient(app.address) as client:
            yield client
    finally:
        await app.stop(0)
