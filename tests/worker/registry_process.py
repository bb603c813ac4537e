"""Runs a registry in its own process: registry_process.py HOST:PORT

Prints its address, then a line for every worker that connects, registers or renews. With a worker connected
it gives the task that takes SECONDS, when that is set in the environment, and prints its verdict.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.worker.registry import Registry, task


def say(*parts: Any) -> None:
    print(*parts, flush=True)


async def main() -> None:
    server = Registry()
    server.renew_ms = 500
    await server.start(sys.argv[1])
    say("ready", server.address)
    seconds = os.environ.get("SECONDS_OF_TASK")

    async def connected() -> None:
        while True:
            link = await server.new_link.get()
            say("connected", link.hello.instance_id)
            if seconds:
                await link.give(task(type="acme.slow", config={"seconds": float(seconds)}))
                say("given")
                while True:
                    frame = await link.frames.get()
                    kind = frame.WhichOneof("frame")
                    verdict = f"verdict={frame.completed.output.verdict}" if kind == "completed" else ""
                    say(kind, verdict)

    async def told(name: str, queue: Any) -> None:
        while True:
            await queue.get()
            say(name)

    await asyncio.gather(
        connected(),
        told("registered", server.registered),
        told("renewed", server.renewed),
        told("deregistered", server.deregistered),
    )


asyncio.run(main())
