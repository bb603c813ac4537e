"""Unary calls while 64 runs play: `python -m benchmarks.beside_runs HOST:PORT` plays the runs.

Each agent takes 0.5 to 1.5 s per answer, as fast models do; the simulated user takes no time.
"""

import json
import random
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import grpc

from evald.v1 import connector_service_pb2, persona_service_pb2, run_service_pb2, scenario_service_pb2
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.persona_service_pb2_grpc import PersonaServiceStub
from evald.v1.run_service_pb2_grpc import RunServiceStub
from evald.v1.scenario_service_pb2_grpc import ScenarioServiceStub

from . import workload
from .lab import UNARY, Lab
from .load import BrokenRun
from .pairs import Row, at_most, paired
from .processes import Process

_RUNS: Final = 64
_ANSWER_SECONDS: Final = (0.5, 1.5)

# Timeout to cancel the runs.
_END_SECONDS: Final = 20

# More turns than fit into the benchmark's time.
_TURNS: Final = 500


def beside_runs(lab: Lab) -> list[Row]:
    body, _ = lab.unary()
    rows = []
    for in_flight in (16, 1):

        def alone(in_flight: int = in_flight) -> float:
            return lab.load(UNARY, body, "--expect", "1", in_flight=in_flight).p99

        def disturbed(in_flight: int = in_flight) -> float:
            command = [sys.executable, "-m", "benchmarks.beside_runs", f"127.0.0.1:{lab.evald.port}"]
            with Process(command) as runs:
                if runs.first_line.strip() != "playing":
                    raise BrokenRun(f"the runs beside do not play: {runs.first_line}")
                p99 = alone(in_flight)
                # Cancel the runs. Without their agent they would fail with retries during the next measurement alone.
                runs.finish(_END_SECONDS)
                return p99

        figure = f"p99 of unary calls beside {_RUNS} runs / alone, {in_flight} in flight"
        rows.append(paired(lab.rounds, disturbed, alone).row(figure, at_most(2), "ms"))
    return rows


class ThinkingAgent(BaseHTTPRequestHandler):
    """An HTTP agent that waits before every answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Wait, then answer."""
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(random.uniform(*_ANSWER_SECONDS))
        answer = json.dumps({"message": workload.context().messages[-1].text}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        with suppress(OSError):  # the run was cancelled meanwhile
            self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def main() -> None:
    """Play the runs until the standard input ends, then cancel them."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), ThinkingAgent) as agent,
        grpc.insecure_channel(sys.argv[1]) as channel,
    ):
        agent.daemon_threads = True
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        stub, runs = RunServiceStub(channel), _start(channel, agent.server_port)
        while not all(_is_running(stub, run_id) for run_id in runs):
            time.sleep(0.05)
        sys.stdout.write("playing\n")
        sys.stdout.flush()
        sys.stdin.read()
        for run_id in runs:
            stub.CancelRun(run_service_pb2.CancelRunRequest(run_id=run_id))
        agent.shutdown()


def _start(channel: grpc.Channel, port: int) -> list[str]:
    name = f"benchmark {time.time_ns()}"
    scenario = scenario_service_pb2.CreateScenarioRequest()
    scenario.scenario.name, scenario.scenario.max_messages = name, 2 * _TURNS
    # Not the workload's assertions: they may fail on this conversation, which would end a run.
    for kind in ("response-length", "tool-call-count", "token-usage", "turn-count"):
        scenario.scenario.evaluators.add(type=kind)
    scenario.scenario.evaluators.add(type="regex").config.update({"pattern": "."})
    persona = persona_service_pb2.CreatePersonaRequest()
    persona.persona.name = name
    persona.persona.script.extend(["and then?"] * _TURNS)
    connector = connector_service_pb2.CreateConnectorRequest()
    connector.connector.name, connector.connector.type = name, "http"
    connector.connector.base_url = f"http://127.0.0.1:{port}"
    stored = ScenarioServiceStub(channel).CreateScenario(scenario).scenario
    person = PersonaServiceStub(channel).CreatePersona(persona).persona
    called = ConnectorServiceStub(channel).CreateConnector(connector).connector
    request = run_service_pb2.StartRunRequest(
        scenario_id=stored.id, persona_id=person.id, connector_id=called.id
    )
    return [RunServiceStub(channel).StartRun(request).run.id for _ in range(_RUNS)]


def _is_running(stub: RunServiceStub, run_id: str) -> bool:
    run = stub.GetRun(run_service_pb2.GetRunRequest(run_id=run_id)).run
    if run.status not in (run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING):
        raise BrokenRun(f"a run beside has ended: {run.error or run.result}")
    return bool(run.turn_count)


if __name__ == "__main__":
    main()
