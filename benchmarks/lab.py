"""The servers under test, their requests as files, and their answers as payloads of the echo servers."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import Message

from evald.v1 import evaluation_service_pb2, result_pb2

from . import load, processes, workload
from .load import Load
from .processes import Process, Server

T = TypeVar("T", bound=Process)

SERVICE: Final = "/evald.v1.EvaluationService"
UNARY: Final = f"{SERVICE}/EvaluateUnary"
STREAM: Final = f"{SERVICE}/Evaluate"
SESSION: Final = f"{SERVICE}/EvaluateSession"
BATCH: Final = f"{SERVICE}/EvaluateBatch"

# Field number of EvaluateBatchResponse.answers, by which grpc_load counts finished turns.
_ANSWERS_FIELD: Final = 1

_ANSWER_SECONDS: Final = 30

# Number of servers of each kind, measured in turn: two processes of the same program differ by several percent, each
# for its whole life.
TWINS: Final = 3


@dataclass
class Lab:
    """The servers of a benchmark, started on first use and running until the end.

    rounds: number of measured pairs. seconds: length of a slice.
    """

    rounds: int
    seconds: float
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def directory(self) -> Path:
        """The directory for requests and payloads."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="evald-bench-")))

    @cached_property
    def evald(self) -> Server:
        """An evald server with its default settings."""
        return self.start(processes.evald)

    @cached_property
    def echo(self) -> Server:
        """The echo servers."""
        return self.start(lambda: processes.echo(self.directory))

    def start(self, make: Callable[[], T]) -> T:
        """Start a process that ends with the lab."""
        process = make()
        self._stack.push(process)
        return process

    def body(self, name: str, messages: Iterable[Message | bytes]) -> Path:
        """Write messages to a file for the load generators. Return its path."""
        path = self.directory / f"{name}.body"
        path.write_bytes(
            workload.framed(m if isinstance(m, bytes) else m.SerializeToString() for m in messages)
        )
        return path

    def payload(self, name: str, answer: bytes) -> str:
        """Store an answer for the echo servers. Return the name that ends their paths."""
        (self.directory / name).write_bytes(answer)
        return name

    def answers(self, path: str, requests: Iterable[Message], server: Server | None = None) -> list[bytes]:
        """Return all answers of evald, or of another server, to the requests."""
        with grpc.insecure_channel(
            (server or self.evald).address, [("grpc.max_receive_message_length", -1)]
        ) as channel:
            call: Any = channel.stream_stream(path)
            sent = (request.SerializeToString() for request in requests)
            return list(call(sent, timeout=_ANSWER_SECONDS))

    def unary(self, copies: int = 1, messages: int = 5) -> tuple[Path, str]:
        """Return body and payload of EvaluateUnary. Raises BrokenRun unless every evaluator has passed."""
        request = workload.unary_request(copies=copies, messages=messages)
        name = f"unary-{copies}-{messages}"
        (answer,) = self.answers(UNARY, [request])
        summary = evaluation_service_pb2.EvaluateUnaryResponse.FromString(answer).summary
        _check(summary, summary.results, 5 * copies)
        return self.body(name, [request]), self.payload(name, answer)

    def stream(self) -> tuple[Path, str]:
        """Do the same as `unary` for Evaluate, whose answer must be a single message."""
        request = workload.evaluate_request()
        (answer,) = self.answers(STREAM, [request])
        event = evaluation_service_pb2.EvaluateResponse.FromString(answer)
        _check(event.summary, event.results, 5)
        return self.body("stream", [request]), self.payload("stream", answer)

    def session(self) -> tuple[Path, str]:
        """Do the same as `unary` for EvaluateSession. The payload is the answer to the second turn."""
        frames = workload.session()
        *answers, last = self.answers(SESSION, frames)
        summary = evaluation_service_pb2.EvaluateSessionResponse.FromString(last).session_summary
        if len(answers) != len(frames) - 1 or not summary.success or summary.turn_count != len(answers):
            raise load.BrokenRun(f"got {len(answers)} answers to {len(frames) - 1} turns, and {summary}")
        return self.body("session", frames), self.payload("session", answers[1])

    @cached_property
    def batch(self) -> Path:
        """The body of EvaluateBatch. Raises BrokenRun unless every item has passed."""
        requests = workload.batch()
        answers = [
            evaluation_service_pb2.EvaluateBatchResponse.FromString(answer)
            for answer in self.answers(BATCH, requests)
        ]
        done = [answer for message in answers for answer in message.answers]
        if len(done) != workload.BATCH_ITEMS * workload.BATCH_MESSAGES:
            raise load.BrokenRun(f"got {len(done)} answers to {len(requests)} messages of items")
        for answer in done:
            _check(answer.summary, answer.summary.results, 5)
        return self.body("batch", requests)

    def load(
        self, path: str, body: Path, *options: str, server: Server | None = None, in_flight: int = 16
    ) -> Load:
        """Run a slice of grpc_load on evald, or on another server."""
        connections = min(load.CONNECTIONS, in_flight)
        return load.run(
            (server or self.evald).port,
            path,
            body,
            self.seconds,
            *options,
            connections=connections,
            streams=in_flight // connections,
        )

    def batch_turns(self) -> float:
        """Return turns per second of EvaluateBatch: two streams, each with two messages of 256 turns in flight."""
        return load.run(
            self.evald.port, BATCH, self.batch, self.seconds, *BATCH_OPTIONS, connections=2, streams=1
        ).units

    @contextlib.contextmanager
    def beside(self, path: str, body: Path, *options: str, server: Server | None = None) -> Iterator[None]:
        """Run another load while the block runs. Raises BrokenRun if it had errors."""
        # Longer than a slice, because the block also starts a load generator and lets it warm up.
        seconds = self.seconds + 1
        words = load.command(
            (server or self.evald).port, path, body, seconds, *options, connections=1, streams=1
        )
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            # Wait until the other load has its connection and its first answers.
            time.sleep(load.WARM_SECONDS)
            yield
            if process.poll() is not None:
                raise load.BrokenRun("the load beside ended before what was measured")
            output, complaints = process.communicate()
        if not load.parsed(output, complaints).calls:
            raise load.BrokenRun(f"the load beside had no answers: {complaints}")


BATCH_OPTIONS: Final = (
    "--bidi",
    "--window",
    "2",
    "--units",
    str(workload.BATCH_ITEMS),
    "--field",
    str(_ANSWERS_FIELD),
)


def _check(
    summary: result_pb2.AggregatedEvaluation,
    results: Iterable[result_pb2.EvaluationResult],
    expected: int,
) -> None:
    passed = [result for result in results if result.verdict == result_pb2.VERDICT_PASSED]
    if not summary.success or len(passed) != expected:
        raise load.BrokenRun(f"{len(passed)} of {expected} evaluators passed: {summary.reason}")
