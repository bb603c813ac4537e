"""The scripted plugin as a process: plugin_process.py listen|HOST:PORT [BREAKS]"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conformance.plugins import Plugin, dialling, listening


async def main() -> None:
    plugin = Plugin(sys.argv[2] if len(sys.argv) > 2 else "")
    if sys.argv[1] == "listen":
        async with listening(plugin) as address:
            print(address, flush=True)
            await asyncio.Event().wait()
    async with dialling(plugin, sys.argv[1]):
        await asyncio.Event().wait()


asyncio.run(main())
