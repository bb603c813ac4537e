"""Writes runs and prints a line for each acknowledged one: python writer.py PLACE PREFIX"""

import asyncio
import itertools
import sys
from pathlib import Path

from evald.v1 import run_service_pb2
from evald_server.store.database import Database
from evald_server.store.resources import ResourceKind, ResourceStore, StoredResource
from evald_server.store.runs import RunEvent, RunEventKind, RunStore

# Writers side by side, so that commits hold several changes.
WRITERS = 8

BODY = b"a message " * 100


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def write(database: Database, prefix: str) -> None:
    runs, resources = RunStore(database), ResourceStore(database)
    for number in itertools.count():
        name = f"{prefix}-{number}"
        [run] = await runs.create([run_service_pb2.Run(id=name, scenario_id="scenario", status=2)])
        say("run", name)
        for sequence in range(2, 6):
            run.last_sequence = sequence
            await runs.save(run, [RunEvent(sequence, RunEventKind.MESSAGE, BODY)])
            say("event", name, sequence)
        await resources.create(ResourceKind.SCENARIO, StoredResource(name, name, BODY, number, number))
        say("scenario", name)


async def main(place: str, prefix: str) -> None:
    database = Database(place if "://" in place else Path(place))
    await database.start()
    await asyncio.gather(*(write(database, f"{prefix}-{number}") for number in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
