"""kill -9 at random moments: what was acknowledged is there, and nothing is half there."""

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from evald_server.store.database import Database
from evald_server.store.resources import ResourceKind, ResourceStore
from evald_server.store.runs import RunFilter, RunStore

from ..forks import Fork
from .conftest import Place
from .writer import BODY

# More of them: KILL_ROUNDS=60 pytest tests/store/test_kill.py
ROUNDS = int(os.environ.get("KILL_ROUNDS", "12"))


def killed_writer(place: Place, name: str) -> list[list[str]]:
    """What a writer had acknowledged when it was killed, some time after its first words."""
    with Fork(
        *("-m", "tests.store.writer", str(place), name),
        directory=Path(__file__).parents[2],
        environment=os.environ,
        stderr=None,
    ) as process:
        assert process.stdout
        said = [process.stdout.readline()]
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        said += process.stdout.readlines()
    # The last line may be cut: it was not said then.
    return [line.split() for line in said if line.endswith("\n")]


async def test_nothing_acknowledged_is_lost(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
    acknowledged = []
    for number in range(ROUNDS // 2):  # on each of two databases
        acknowledged += await asyncio.to_thread(killed_writer, lasting_place, str(number))
    database = open_database(lasting_place)
    await database.start()
    runs, resources = RunStore(database), ResourceStore(database)
    stored = {run.id: run for _, run in await runs.list(RunFilter(), limit=100_000)}
    scenarios = {one.id for one in await resources.list(ResourceKind.SCENARIO, limit=100_000)}
    events = defaultdict(list)
    for kind, name, *rest in acknowledged:
        assert name in (scenarios if kind == "scenario" else stored), (kind, name)
        if kind == "event":
            events[name].append(int(rest[0]))
    assert events
    for name, sequences in events.items():
        there = await runs.events(name)
        # In order, none missing, and the run's row is of the same commit as its last event.
        assert [event.sequence for event in there] == list(range(1, len(there) + 1))
        assert there[-1].sequence == stored[name].last_sequence >= max(sequences)
        assert all(event.body == BODY for event in there[1:])
