"""kill -9 of a server at random moments while a suite runs: no answer that was given is lost or changes."""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from evald.v1.connector_service_pb2 import Connector
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub
from tests.rpc.suite_floor import (
    INTERRUPTED,
    PASSED,
    Outcome,
    asked,
    get,
    opened,
    play,
    recorded,
    stored_cases,
)

from ..rpc.live import spec
from .test_kill_server import server, slow_agent

# More of them: KILL_ROUNDS=60 pytest tests/runs/test_kill_suites.py
ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))


@pytest.mark.thorough
async def test_a_suite_run_survives_kills_of_the_server(tmp_path: Path) -> None:
    chance = random.Random(ROUNDS)
    first = opened(spec("contains", {"text": "answer"}), suite_run_id="one", case_count=1300)
    cases = [
        asked(f"case {number:04}") if number % 10 == 0 else recorded(f"case {number:04}", "an answer")
        for number in range(1300)
    ]
    told: dict[str, bytes] = {}
    met = 0
    with slow_agent() as agent:
        first.connector.CopyFrom(Connector(name="agent", type="http", base_url=agent))
        first.connector.config.update({"body": {"messages": "{{messages}}"}})
        for _ in range(ROUNDS):
            async with server(tmp_path) as (process, channel):
                stub, into = SuiteServiceStub(channel), Outcome()
                if first.resume:
                    run = await get(stub, "one")
                    assert (run.status, run.verdict) == (INTERRUPTED, 0)
                    assert run.case_count >= len(told)
                playing = asyncio.create_task(play(stub, first, cases, into=into))
                while not into.started.id:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.005)
                first.resume = True
                await asyncio.sleep(chance.uniform(0.02, 0.3))
                process.kill()
                with suppress(grpc.aio.AioRpcError):
                    await playing
                met += into.ended is None
                _agree(told, into)
                if into.ended is not None:
                    break
        async with server(tmp_path) as (_, channel):
            stub = SuiteServiceStub(channel)
            if met == ROUNDS:
                outcome = await play(stub, first, cases)
                _agree(told, outcome)
                assert (outcome.run.verdict, outcome.run.passed_count) == (PASSED, 1300)
            stored = await stored_cases(stub, "one", page_size=1000)
            assert [case.case_id for case in stored] == [case.case_id for case in cases]
            assert {case.case_id: case.SerializeToString(deterministic=True) for case in stored} == told
    assert met, "no kill has met the suite run"


def _agree(told: dict[str, bytes], outcome: Outcome) -> None:
    """Note what was answered. What was answered before must be the same."""
    for result in outcome.results:
        data = result.SerializeToString(deterministic=True)
        assert told.setdefault(result.case_id, data) == data
