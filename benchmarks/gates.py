"""Several evald servers in one process and event loop, which differ only in their settings. Run by the benchmarks.

In one process, because two processes of the same program differ by several percent, each for its whole life.

    python -m benchmarks.gates SETTINGS_AS_JSON SETTINGS_AS_JSON ...
"""

import asyncio
import json
import sys
from typing import Any

from evald_server.app import App
from evald_server.config import Settings
from evald_server.loop import event_loop


async def serve(servers: list[dict[str, Any]]) -> None:
    """Print the ports, and serve until killed."""
    apps = [App(Settings(listen="127.0.0.1:0", http="", web="", **settings)) for settings in servers]
    for app in apps:
        await app.start()
    print(json.dumps([int(app.address.rpartition(":")[2]) for app in apps]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with event_loop() as runner:
        runner.run(serve([json.loads(word) for word in sys.argv[1:]]))
