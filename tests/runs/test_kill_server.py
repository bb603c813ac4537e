"""kill -9 of a server at random moments while runs go: nothing acknowledged is lost, nothing is evaluated twice."""

import asyncio
import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.v1 import connector_service_pb2 as connectors_pb
from evald.v1 import persona_service_pb2 as personas_pb
from evald.v1 import run_service_pb2 as runs_pb
from evald.v1 import scenario_service_pb2 as scenarios_pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.evaluator_pb2 import EvaluatorSpec
from evald.v1.persona_service_pb2_grpc import PersonaServiceStub
from evald.v1.run_service_pb2_grpc import RunServiceStub
from evald.v1.scenario_service_pb2_grpc import ScenarioServiceStub
from tests.forks import Fork
from tests.processes import EVALD, clean_environment

# More of them: KILL_ROUNDS=60 pytest tests/runs/test_kill_server.py
ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))

LINES = 12
RUNS = 6


class SlowAgent(BaseHTTPRequestHandler):
    """Takes 10 ms to say how many messages it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        asked = json.loads(self.rfile.read(size))
        time.sleep(0.01)
        body = json.dumps({"message": f"answer to {len(asked['messages'])}"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # the server was killed meanwhile
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    """Says nothing of connections that break off."""

    daemon_threads = True

    def handle_error(self, *_args: Any) -> None:
        pass


@contextmanager
def slow_agent() -> Iterator[str]:
    with QuietServer(("127.0.0.1", 0), SlowAgent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[tuple[Fork, grpc.aio.Channel]]:
    """A server in a process of its own, killed at the end."""
    with Fork(
        *(EVALD, "serve", "--listen", "127.0.0.1:0", "--http", "", "--data-dir", str(directory)),
        stderr=subprocess.DEVNULL,
        environment=clean_environment(),
    ) as process:
        assert process.stdout
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            address = next(word for word in line.replace(",", " ").split() if word.startswith("127.0.0.1:"))
            async with grpc.aio.insecure_channel(address) as channel:
                yield process, channel
        finally:
            process.kill()


async def prepare(channel: grpc.aio.Channel, agent: str) -> tuple[str, str, str]:
    """Store what is run. Returns the ids of scenario, persona and connector."""
    scenario = Scenario(
        name="long",
        max_messages=100,
        evaluators=[EvaluatorSpec(type="response-length"), EvaluatorSpec(type="turn-count")],
    )
    scenario.evaluators[1].turn_policy = 2
    persona = Persona(name="Maria", script=[f"line {number}" for number in range(LINES)])
    connector = Connector(name="agent", type="http", base_url=agent)
    connector.config.update({"body": {"messages": "{{messages}}"}})
    stored = await ScenarioServiceStub(channel).CreateScenario(
        scenarios_pb.CreateScenarioRequest(scenario=scenario)
    )
    person = await PersonaServiceStub(channel).CreatePersona(
        personas_pb.CreatePersonaRequest(persona=persona)
    )
    called = await ConnectorServiceStub(channel).CreateConnector(
        connectors_pb.CreateConnectorRequest(connector=connector)
    )
    return stored.scenario.id, person.persona.id, called.connector.id


class Acknowledged:
    """What a caller was told: runs that were started, and their events."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.events: dict[str, dict[int, bytes]] = {}
        self.ended: set[str] = set()  # runs that were looked at after their end

    async def start(self, stub: RunServiceStub, ids: tuple[str, str, str]) -> None:
        for _ in range(RUNS):
            request = runs_pb.StartRunRequest(scenario_id=ids[0], persona_id=ids[1], connector_id=ids[2])
            run = (await stub.StartRun(request)).run
            self.runs.append(run.id)
            self.events[run.id] = {}

    async def watch(self, stub: RunServiceStub, run_id: str) -> None:
        """Note the events of a run until it or the server ends."""
        seen = self.events[run_id]
        request = runs_pb.WatchRunRequest(run_id=run_id, after_sequence=max(seen, default=0))
        with suppress(grpc.aio.AioRpcError):
            async for event in stub.WatchRun(request):
                seen[event.sequence] = event.SerializeToString(deterministic=True)


async def check(stub: RunServiceStub, told: Acknowledged) -> list[str]:
    """Check that everything that was told is there. Returns the runs that were interrupted."""
    interrupted = []
    for run_id in told.runs:
        if run_id in told.ended:
            continue
        run = (await stub.GetRun(runs_pb.GetRunRequest(run_id=run_id))).run
        assert run.status in (
            runs_pb.RUN_STATUS_QUEUED,
            runs_pb.RUN_STATUS_RUNNING,
            runs_pb.RUN_STATUS_COMPLETED,
            runs_pb.RUN_STATUS_INTERRUPTED,
        ), run.error
        if run.status == runs_pb.RUN_STATUS_INTERRUPTED:
            interrupted.append(run_id)
        if run.status == runs_pb.RUN_STATUS_COMPLETED:
            told.ended.add(run_id)
        if run.status in (runs_pb.RUN_STATUS_INTERRUPTED, runs_pb.RUN_STATUS_COMPLETED):
            now = {
                event.sequence: event.SerializeToString(deterministic=True)
                async for event in stub.WatchRun(runs_pb.WatchRunRequest(run_id=run_id))
            }
            for sequence, event in told.events[run_id].items():
                assert now[sequence] == event
    return interrupted


def whole(run: runs_pb.Run) -> None:
    """Check a run that has ended: every line was said once, every turn evaluated once."""
    said = [message.text for message in run.messages if message.role == "user"]
    assert said == [f"line {number}" for number in range(LINES)]
    answers = [message.text for message in run.messages if message.role == "assistant"]
    assert answers == [f"answer to {2 * number + 1}" for number in range(LINES)]
    assert [turn.turn for turn in run.turns] == list(range(1, LINES + 1))
    assert [turn.is_final for turn in run.turns] == [False] * (LINES - 1) + [True]
    for turn in run.turns:
        assert Counter(result.name for result in turn.evaluation.results) == {
            "response-length": 1,
            "turn-count": 1,
        }


def processes_naming(directory: Path) -> list[str]:
    """The command lines of processes that have the directory in them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(directory) in line and "pytest" not in line:
                found.append(line)
    return found


@pytest.mark.thorough
def test_runs_survive_kills_of_the_server(tmp_path: Path) -> None:
    random.seed(ROUNDS)
    asyncio.run(_survive(tmp_path))


async def _survive(tmp_path: Path) -> None:
    told, cut, ids = Acknowledged(), 0, ("", "", "")
    async with asyncio.timeout(60 + 15 * ROUNDS):
        with slow_agent() as agent:
            for _ in range(ROUNDS):
                async with server(tmp_path) as (process, channel):
                    stub = RunServiceStub(channel)
                    ids = ids if ids[0] else await prepare(channel, agent)
                    interrupted = await check(stub, told)
                    cut += len(interrupted)
                    for run_id in interrupted:
                        await stub.ResumeRun(runs_pb.ResumeRunRequest(run_id=run_id))
                    await told.start(stub, ids)
                    watches = [
                        asyncio.create_task(told.watch(stub, run_id))
                        for run_id in told.runs
                        if run_id not in told.ended
                    ]
                    await asyncio.sleep(random.uniform(0.02, 0.5))
                    process.kill()
                    await asyncio.gather(*watches)
                assert processes_naming(tmp_path) == []
            async with server(tmp_path) as (_, channel):
                stub = RunServiceStub(channel)
                for run_id in await check(stub, told):
                    await stub.ResumeRun(runs_pb.ResumeRunRequest(run_id=run_id))
                for run_id in told.runs:
                    await told.watch(stub, run_id)
                    run = (await stub.GetRun(runs_pb.GetRunRequest(run_id=run_id))).run
                    assert run.status == runs_pb.RUN_STATUS_COMPLETED
                    assert run.result.success
                    whole(run)
    assert cut, "no kill has met a run"
