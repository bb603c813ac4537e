"""Figures of the store, on SQLite and on PostgreSQL."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, insert, literal_column, select, text
from tests.store.postgres import Postgres, programs

from evald.v1 import evaluator_pb2, result_pb2, run_service_pb2
from evald_server.store.database import Database
from evald_server.store.runs import RunEvent, RunEventKind, RunFilter, RunStore
from evald_server.store.schema import METADATA, RUNS

from .lab import Lab
from .pairs import Row, at_most, number

# 100 runs, doubled ten times by the database itself. This takes a minute; storing them one by one would take an hour.
_TEMPLATES: Final = 100
_DOUBLINGS: Final = 10
_RUNS: Final = _TEMPLATES << _DOUBLINGS

_TURNS: Final = 12
_RESULTS: Final = 5
_CONVERSATION: Final = "I would like to change my booking to a later flight, please. " * 2

_SECOND: Final = 1_000_000

# A status of one in ten thousand runs, for which a filter without an index would search longest.
_RARE: Final = run_service_pb2.RUN_STATUS_INTERRUPTED

_AT_ONCE: Final = 64
_BOUND_MS: Final = 50.0

# On PostgreSQL, each statement is a round trip to another process.
_TURN_MS: Final = {"SQLite": 2.0, "PostgreSQL": 4.0}

Ask = Callable[[], Awaitable[Sequence[Any]]]


class _Question(NamedTuple):
    name: str
    ask: Ask


def lists(lab: Lab) -> list[Row]:
    """Measure lists, filters and details of 100,000 stored runs."""
    return asyncio.run(_lists(lab))


def turns(lab: Lab) -> list[Row]:
    """Measure the time to store a turn, with many runs at once."""
    return asyncio.run(_turns(lab))


@asynccontextmanager
async def _databases(lab: Lab) -> AsyncIterator[dict[str, Database]]:
    found = programs()
    if found is None:
        raise RuntimeError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    async with AsyncExitStack() as stack:
        postgres = Postgres(found, fsync=True)
        stack.callback(postgres.close)
        postgres.start()
        places: dict[str, str | Path] = {
            "SQLite": lab.directory / "runs.sqlite3",
            "PostgreSQL": postgres.create(),
        }
        databases = {name: Database(place) for name, place in places.items()}
        for database in databases.values():
            stack.push_async_callback(database.close)
            await database.start()
        yield databases


async def _lists(lab: Lab) -> list[Row]:
    rows = []
    async with _databases(lab) as databases:
        for name, database in databases.items():
            await fill(database)
            store = RunStore(database)
            measured = {}
            for question in _questions(store, await _middle(database)):
                found = await question.ask()  # warm-up: the first request reads from the disk
                if question.name != "nothing" and not found:
                    raise RuntimeError(f"{name}: {question.name}: nothing was found")
                measured[question.name] = [await _milliseconds(question.ask) for _ in range(10 * lab.rounds)]
            slowest = max(measured.values(), key=statistics.median)
            told = ", ".join(
                f"{question} {number(statistics.median(times))}" for question, times in measured.items()
            )
            figure = f"slowest list, filter or detail of {_RUNS:,} stored runs on {name}, ms"
            rows.append(Row(figure, at_most(_BOUND_MS), slowest, told))
    return rows


def _questions(store: RunStore, middle: int) -> list[_Question]:
    def listing(name: str, after: int | None = None, **wanted: Any) -> _Question:
        return _Question(name, lambda: store.list(RunFilter(**wanted), after=after))

    async def detail() -> Sequence[RunEvent]:
        assert await store.get("run-42") is not None
        return await store.events("run-42")

    async def oldest() -> Sequence[Any]:
        return await store.list(RunFilter(), oldest_first=True)

    return [
        listing("newest"),
        _Question("oldest", oldest),
        listing("a page in the middle", after=middle),
        listing("scenario", scenario_id="scenario-7"),
        listing("persona", persona_id="persona-7"),
        listing("connector", connector_id="connector-1"),
        listing("experiment", experiment_id="experiment-3"),
        listing("execution", execution_id=5),
        listing("status", status=run_service_pb2.RUN_STATUS_COMPLETED),
        listing("rare status", status=_RARE),
        listing("verdict", verdict=result_pb2.VERDICT_FAILED),
        listing("failed evaluator", failed_evaluator="evaluator-2"),
        listing("time", since=middle, until=middle + 3600 * _SECOND),
        listing("before a time", until=middle),
        listing("scenario and persona", scenario_id="scenario-7", persona_id="persona-7"),
        listing("scenario and rare status", scenario_id="scenario-42", status=_RARE),
        listing("failed evaluator and scenario", failed_evaluator="evaluator-2", scenario_id="scenario-8"),
        listing("nothing", scenario_id="scenario-7", status=_RARE, failed_evaluator="evaluator-2"),
        _Question("detail", detail),
    ]


async def _milliseconds(ask: Ask) -> float:
    began = time.perf_counter()
    await ask()
    return 1000 * (time.perf_counter() - began)


async def _middle(database: Database) -> int:
    middle = select(RUNS.c.number).order_by(RUNS.c.number).offset(_RUNS // 2).limit(1)
    return await database.read(lambda connection: connection.scalars(middle).one())


async def fill(database: Database) -> None:
    """Store 102,400 runs."""
    store = RunStore(database)
    # One second apart; the copies follow after them.
    began = time.time_ns() // 1000 - _RUNS * _SECOND
    for index in range(_TEMPLATES):
        run = _run(f"run-{index}", index)
        run.create_time.FromMicroseconds(began + index * _SECOND)
        events = list(_events(index))
        run.last_sequence = events[-1].sequence
        await store.import_run(run, events)
    for doubling in range(_DOUBLINGS):
        offset = _TEMPLATES * _SECOND << doubling
        await database.write(lambda connection, offset=offset: _double(connection, offset))  # type: ignore[misc]
    await database.write(_make_rare)
    await database.write(_analyze)


def _double(connection: Connection, offset: int) -> None:
    """Copy every run with its events to a later time. offset: microseconds."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
    for name in ("runs", "run_states", "run_snapshots", "run_events", "run_failures"):
        table = METADATA.tables[name]
        columns = [
            (column + offset).label(column.name)
            if column.name in ("number", "created")
            else column.concat(f"+{offset}").label(column.name)
            if column.name == "id"
            else column
            for column in table.columns
        ]
        connection.execute(insert(table).from_select([column.name for column in columns], select(*columns)))


def _make_rare(connection: Connection) -> None:
    rare = select(RUNS.c.number).where(RUNS.c.scenario_id == "scenario-42").order_by(RUNS.c.number).limit(10)
    connection.execute(RUNS.update().where(RUNS.c.number.in_(rare)).values(status=_RARE))


def _analyze(connection: Connection) -> None:
    # PostgreSQL does this automatically within minutes. SQLite has statistics only after a command.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("ANALYZE"))
    assert connection.scalar(select(func.count(literal_column("1"))).select_from(RUNS)) == _RUNS


def _run(run_id: str, index: int) -> run_service_pb2.Run:
    run = run_service_pb2.Run(
        id=run_id,
        scenario_id=f"scenario-{index % 50}",
        persona_id=f"persona-{index % 20}",
        connector_id=f"connector-{index % 5}",
        experiment_id=f"experiment-{index % 10}",
        execution_id=index % 25 + 1,
        status=run_service_pb2.RUN_STATUS_COMPLETED,
        verdict=result_pb2.VERDICT_FAILED if index % 3 == 0 else result_pb2.VERDICT_PASSED,
        turn_count=_TURNS,
    )
    run.scenario.name, run.scenario.instructions = run.scenario_id, _CONVERSATION * 3
    run.persona.name, run.persona.description = run.persona_id, _CONVERSATION
    run.connector.name, run.connector.type = run.connector_id, "http"
    run.output.evaluator_results.extend(_results(index))
    return run


def _results(index: int) -> list[result_pb2.EvaluationResult]:
    found = []
    for position in range(_RESULTS):
        failed = (index + position) % 10 == 0
        result = result_pb2.EvaluationResult(
            index=position,
            name=f"evaluator-{position}",
            type="llm-judge",
            kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
            verdict=result_pb2.VERDICT_FAILED if failed else result_pb2.VERDICT_PASSED,
            reason=_CONVERSATION,
            score=0.5,
            success=not failed,
        )
        result.duration.FromMilliseconds(12)
        found.append(result)
    return found


def _events(index: int, turns: int = _TURNS) -> "list[RunEvent]":
    sequence = itertools.count(1)
    found = [RunEvent(next(sequence), RunEventKind.STATUS, b"\x08\x01")]
    for turn in range(1, turns + 1):
        found += [_message(next(sequence), 2 * turn), _message(next(sequence), 2 * turn + 1)]
        body = run_service_pb2.RunTurn(turn=turn, message_count=2)
        body.evaluation.results.extend(_results(index))
        last = [next(sequence) for _ in range(_RESULTS + 1)][-1]
        found.append(RunEvent(last, RunEventKind.TURN, body.SerializeToString()))
    return found


def _message(sequence: int, index: int) -> RunEvent:
    body = run_service_pb2.RunMessage(index=index)
    body.message.role, body.message.text = "user", _CONVERSATION
    return RunEvent(sequence, RunEventKind.MESSAGE, body.SerializeToString())


async def _turns(lab: Lab) -> list[Row]:
    rows = []
    async with _databases(lab) as databases:
        for name, database in databases.items():
            store = RunStore(database)
            values = []
            for attempt in range(lab.rounds + 1):
                began = time.perf_counter()
                await asyncio.gather(
                    *(_play(store, f"{attempt}-{index}", index) for index in range(_AT_ONCE))
                )
                values.append(1000 * (time.perf_counter() - began) / _AT_ONCE / _TURNS)
            detail = f"{_AT_ONCE} runs at once, three commits a turn, {_RESULTS} results"
            rows.append(Row(f"storing a turn on {name}, ms", at_most(_TURN_MS[name]), values[1:], detail))
    return rows


async def _play(store: RunStore, run_id: str, index: int) -> None:
    """Store a run as the run loop does: the agent's answer, the turn, the persona's next message."""
    [run] = await store.create([_run(run_id, index)])
    for event in _events(index)[1:]:
        run.last_sequence = event.sequence
        await store.save(run, [event])
