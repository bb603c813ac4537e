"""Workers of the SDK and a real server find each other, work together, and come back to each other."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

import evald
from evald_server import testing

from .. import forks
from ..forks import Fork
from ..loop import run
from ..processes import clean_environment
from ..remote.test_processes import Caller, Process, Server
from ..rpc.live import until
from .evaluators import BROKEN, Sleepy, length, polite

TURN = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes, please."}]


def worker(way: str, server: str) -> Process:
    return Process("tests.worker.worker_process", way, server)


@pytest.mark.parametrize("way", ["connect", "serve"])
async def test_a_worker_is_back_by_itself_after_the_server_was_killed_and_started_again(
    tmp_path: Path, way: str
) -> None:
    with Server(tmp_path) as server, worker(way, server.address):
        caller = Caller(server.address)

        async def works() -> bool:
            return await caller.code("acme.slow") == ""

        await until(works, 20)
        server.kill()
        await asyncio.sleep(1)  # what a restart takes at least; the worker's attempts fail meanwhile
        with Server(tmp_path, server.port):
            await until(works, 20)


async def test_the_example_is_eight_lines_and_works(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/remote/python/polite.py"
    lines = [line for line in example.read_text(encoding="utf-8").splitlines() if line]
    assert len(lines) <= 8

    with Server(tmp_path) as server:
        environment = clean_environment({"EVALD_SERVER": server.address})
        process = Fork(str(example), environment=environment, stdout=None, stderr=subprocess.DEVNULL)
        try:
            caller = Caller(server.address)

            async def works() -> bool:
                return await caller.code("acme.polite") == ""

            await until(works, 20)
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("way", ["connect(contains, server=", "serve(contains, register="])
def test_a_worker_that_is_refused_says_why_in_a_line_and_ends_with_1(way: str) -> None:
    program = f"""
import sys, evald

@evald.assertion("contains")
def contains(ctx):
    return True

evald.{way}sys.argv[1])
"""
    with testing.server(remote_allowed=["127.0.0.1"]) as server:
        arguments = ("-c", program, server.address)
        done = forks.run(*arguments, environment=clean_environment())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert "rejects this worker" in line
    assert "add a prefix to the name" in line


def _one_of_each(*evaluators: Any, way: str) -> evald.Evaluation:
    """What a real server says of a turn with evaluators that a worker offers."""

    async def main() -> evald.Evaluation:
        async with testing.async_server(remote_allowed=["127.0.0.1"]) as server:
            names = [evaluator.type for evaluator in evaluators]
            worker: Any
            if way == "connect":
                worker = evald.DiallingWorker(*evaluators, server=server.address)
            else:
                worker = evald.ListeningWorker(*evaluators, register=server.address)
            async with worker, server.async_client() as client:

                async def known() -> bool:
                    states = {one.type: one.state for one in await client.evaluator_types()}
                    return all(states.get(name) == "active" for name in names)

                await until(known, 20)
                return await client.evaluate(TURN, names)

    return run(main())


@pytest.mark.parametrize("way", ["connect", "serve"])
def test_results_of_a_worker_are_as_if_its_evaluators_were_built_in(way: str) -> None:
    evaluation = _one_of_each(polite, length, Sleepy, way=way)
    assert evaluation.passed, evaluation
    assert evaluation["acme.length"].value == len("Yes, please.")
    assert evaluation["acme.sleepy"].reason == "slept"


@pytest.mark.parametrize("way", ["connect", "serve"])
def test_faults_of_a_worker_are_errors_with_its_own_codes(way: str) -> None:
    expected = {one.type: code for code, broken in BROKEN.items() for one in broken}
    evaluation = _one_of_each(*(one for broken in BROKEN.values() for one in broken), way=way)
    codes = {result.type: result.error.code for result in evaluation.results if result.error}
    assert codes == expected
