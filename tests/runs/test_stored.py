"""The runner on the real store."""

from typing import Any

from evald.result import Verdict
from evald_server.connectors.connector import ConnectorFailure
from evald_server.runs.turn_events import watch_responses
from evald_server.store.database import MEMORY, Database
from evald_server.store.runs import RunStore

from .test_runner import COMPLETED, ERROR, INTERRUPTED, Gate, House


async def test_a_run_is_retried_interrupted_and_resumed() -> None:
    database = Database(MEMORY)
    await database.start()
    try:
        store: Any = RunStore(database)
        first = House(Gate(ConnectorFailure("CONNECTOR_TIMEOUT", "late"), "fine"), store)
        (run_id,) = await first.submit()
        first.agent.open(1)
        await first.until(run_id, ERROR)
        assert await first.runner.retry(run_id) is not None
        first.agent.open(1)
        for _ in range(3):
            await first.agent.asked.get()
        await first.runner.drain(0)
        assert (await store.get(run_id)).status == INTERRUPTED

        second = House(Gate(), store)
        second.agent.open()
        await second.runner.start()
        second.runner.begin()
        assert await second.runner.resume(run_id) is not None
        run = await second.until(run_id, COMPLETED)
        assert (Verdict(run.verdict), run.turn_count, run.attempt, len(run.messages)) == (
            Verdict.PASSED,
            3,
            2,
            6,
        )
        assert len(second.agent.requests) == 2
        seen = [one.sequence for event in await store.events(run_id) for one in watch_responses(event, run)]
        assert seen == list(range(seen[0], run.last_sequence + 1))
    finally:
        await database.close()
