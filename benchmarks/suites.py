"""A suite of recorded cases through RunSuite, each stored: cases per second, and memory while they go through.

`python -m benchmarks.suites --cases 1000000` prints the server's memory at every tenth of them, and ends with 1 when
the last one is more than 32 MiB above the first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict

from evald.v1 import result_pb2, suite_service_pb2
from evald.v1.suite_service_pb2 import RunSuiteRequest, SuiteCase

from . import processes, workload
from .load import BrokenRun
from .processes import Server

CASES: Final = 10_000

_RUN_SUITE: Final = "/evald.v1.SuiteService/RunSuite"
_A_MESSAGE: Final = 250
_GROWTH: Final = 32 << 20


def requests(count: int) -> Iterator[bytes]:
    """Yield the messages of a suite with `count` cases: the workload's turn, recorded, with its five checks."""
    turn = workload.context()
    case = SuiteCase(messages=turn.messages[:1])
    case.turns.add(input=turn.messages[1:2])
    answer = case.recorded_trials.add().answers.add()
    answer.CopyFrom(turn.last_invocation)
    answer.messages.extend(turn.messages[2:])
    for begin in range(0, count, _A_MESSAGE):
        message = RunSuiteRequest()
        if not begin:
            message.open.suite, message.open.case_count = "bench", count
            message.open.evaluators.extend(workload.specs())
        for number in range(begin, min(begin + _A_MESSAGE, count)):
            case.case_id = f"case-{number:08}"
            message.cases.append(case)
        yield message.SerializeToString()


def responses(server: Server, messages: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the responses. Raises BrokenRun unless every case has passed."""
    with grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel:
        call: Any = channel.stream_stream(_RUN_SUITE)
        last = b""
        for last in call(messages):
            yield last
        run = suite_service_pb2.RunSuiteResponse.FromString(last).ended
        if run.verdict != result_pb2.VERDICT_PASSED or run.passed_count != run.case_count:
            raise BrokenRun(f"not all cases passed: {run}")


def per_second(server: Server, messages: list[bytes]) -> float:
    """Return cases per second. messages: of a suite with CASES cases."""
    began = time.perf_counter()
    for _ in responses(server, iter(messages)):
        pass
    return CASES / (time.perf_counter() - began)


def write_file(path: Path, count: int) -> None:
    """Write the same suite as a file for `evald test`: a line for the suite, and one line per case."""
    turn = workload.context()
    system, question, call, result, answer = turn.messages
    function = call.tool_calls[0].function
    usage = turn.last_invocation.token_usage
    case = {
        "messages": [{"role": "system", "content": system.text}],
        "input": question.text,
        "output": {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": call.tool_calls[0].id,
                            "type": "function",
                            "function": {"name": function.name, "arguments": function.arguments},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.text},
                {"role": "assistant", "content": answer.text},
            ],
            "latency_ms": workload.LATENCY_MS,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        },
    }
    suite = {"name": "bench", "evaluators": [MessageToDict(spec) for spec in workload.specs()]}
    with path.open("w") as stream:
        stream.write(json.dumps({"suite": suite}) + "\n")
        for number in range(count):
            stream.write(json.dumps({"id": f"case-{number:08}", **case}) + "\n")


def command_seconds(command: list[str], setup: str = "") -> float:
    """Return how many seconds a command takes in an empty directory. Raises BrokenRun."""
    # With byte code, as in packages that pip installed: the first command writes it.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EVALD_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    with TemporaryDirectory(prefix="evald-bench-") as directory:
        began = time.perf_counter()
        done = subprocess.run(
            command, input=setup, capture_output=True, text=True, cwd=directory, env=environment, check=False
        )
        took = time.perf_counter() - began
    if done.returncode:
        raise BrokenRun(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return took


def main() -> int:
    """Print the memory of a server during a large suite. Return 1 if it grew too much, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    count = parser.parse_args().cases
    seen: list[int] = []
    done, began = 0, time.perf_counter()
    with (
        TemporaryDirectory(prefix="evald-bench-") as directory,
        processes.evald(data_dir=Path(directory) / "data") as server,
    ):
        for data in responses(server, requests(count)):
            done += len(suite_service_pb2.RunSuiteResponse.FromString(data).results)
            if done * 10 >= count * (len(seen) + 1):
                seen.append(server.resident_bytes)
                rate = done / (time.perf_counter() - began)
                print(f"{done:>9,} cases, {seen[-1] / 2**20:.1f} MiB, {rate:,.0f} cases/s", flush=True)
    return int(seen[-1] - seen[0] > _GROWTH)


if __name__ == "__main__":
    sys.exit(main())
