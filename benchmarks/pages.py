"""Load times of the console's pages with 100,000 stored runs."""

import asyncio
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator
from typing import Final

from evald_server.store import rollups
from evald_server.store.database import FILE_NAME, Database
from evald_server.store.rollups import ASSERTION, DAY, HOUR, METRIC, RUN, Count, Rollup, ValueCount, rounded
from evald_server.store.runs import RunStore

from .lab import Lab
from .pairs import Row, at_most, number
from .stored_runs import fill
from .web import KeptConnection, start_web

# Path, and bound of the p95 in milliseconds, for each page.
_PAGES: Final = {
    "runs": ("/console/runs", 15.0),
    "runs by a filter": ("/console/runs?verdict=failed&evaluator=evaluator-2", 15.0),
    "overview of a day": ("/console/overview", 30.0),
    "overview of a month": ("/console/overview?period=30d", 30.0),
    "run": ("/console/runs/run-42", 40.0),
}
_ASKED: Final = 100

_HOURS: Final = 30 * 24
_TYPES: Final = 30
_VALUES: Final = 90


def pages(lab: Lab) -> list[Row]:
    """Measure the console's pages with 100,000 stored runs, from the request to the last byte."""
    asyncio.run(_fill(lab))
    server, port = start_web(lab, data_dir=lab.directory)
    rows = []
    with KeptConnection(port) as connection:

        def ask(path: str) -> float:
            began = time.perf_counter()
            connection.get(path)
            return 1000 * (time.perf_counter() - began)

        for name, (path, bound) in _PAGES.items():
            ask(path)  # warm-up: the first request reads from the disk
            before = server.cpu_seconds
            rounds = [sorted(ask(path) for _ in range(_ASKED)) for _ in range(lab.rounds)]
            taken = 1000 * (server.cpu_seconds - before) / _ASKED / lab.rounds
            values = [times[95 * _ASKED // 100 - 1] for times in rounds]
            median = statistics.median(itertools.chain(*rounds))
            loads = "/".join(f"{load:.0f}" for load in os.getloadavg()[:2])
            detail = f"p95 of {_ASKED}; p50 {number(median)}, processor {number(taken)}, load of the machine {loads}"
            rows.append(Row(f"page: {name}, ms", at_most(bound), values, detail))
    return rows


async def _fill(lab: Lab) -> None:
    database = Database(lab.directory / FILE_NAME)
    await database.start()
    try:
        await fill(database)
        counts = list(_counts())
        for begin in range(0, len(counts), 50_000):
            part = counts[begin : begin + 50_000]
            await database.write(lambda connection, part=part: rollups.add(connection, part))  # type: ignore[misc]
        assert await RunStore(database).rollups(0, 2**60, DAY)
    finally:
        await database.close()


def _counts() -> "Iterator[Count]":
    """Yield the rollups of one month with _TYPES evaluator types."""
    now = time.time_ns() // 1000
    chance = random.Random(1)
    keys = [(ASSERTION if n % 3 else METRIC, f"evaluator-{n}") for n in range(_TYPES)]
    keys.append((RUN, ""))
    for begin in range(now - now % HOUR, now - now % HOUR - _HOURS * HOUR, -HOUR):
        for scope, key in keys:
            yield Rollup(begin, scope, key, chance.randrange(1, 90), 5, 1, 0, _VALUES, 45.0)
            if scope == METRIC:
                for _ in range(_VALUES):
                    yield ValueCount(begin, key, rounded(chance.lognormvariate(0, 0.7)), 1)
