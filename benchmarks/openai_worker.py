"""A worker with the bare `openai` client, which repeats one chat completion at a fixed concurrency.

The first line of standard input is the setup; then it prints a line. After that, each line of standard input is a
number of seconds to work, and it prints the number of calls and the time taken. Run by the benchmarks.

    python -m benchmarks.openai_worker
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai

from evald_server.loop import event_loop


async def _ask(client: openai.AsyncOpenAI, body: dict[str, Any], until: float) -> int:
    done = 0
    while time.perf_counter() < until:
        completion = await client.chat.completions.create(**body)
        # Parse the JSON, because every real call does.
        assert json.loads(completion.choices[0].message.content or "")["score"] == 0.9
        done += 1
    return done


async def _serve(setup: dict[str, Any]) -> None:
    client = openai.AsyncOpenAI(
        base_url=setup["base_url"], api_key="bench", max_retries=0, timeout=openai.Timeout(30)
    )
    await _ask(client, setup["body"], time.perf_counter() + 0.1)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        until = began + float(line)
        done = sum(
            await asyncio.gather(*(_ask(client, setup["body"], until) for _ in range(setup["in_flight"])))
        )
        print(json.dumps([done, time.perf_counter() - began]), flush=True)


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    with event_loop() as runner:
        runner.run(_serve(setup))


if __name__ == "__main__":
    main()
