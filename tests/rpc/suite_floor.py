"""Suite runs over a real channel."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from evald.v1 import suite_service_pb2 as pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.context_pb2 import Invocation
from evald.v1.evaluator_pb2 import EvaluatorSpec
from evald.v1.suite_service_pb2 import CaseResult, RunSuiteRequest, SuiteCase, SuiteOpen, SuiteRun
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub

from .live import CONTAINS

PASSED, FAILED, ERROR, SKIPPED = 1, 2, 3, 4

COMPLETED, INTERRUPTED = pb.SUITE_RUN_STATUS_COMPLETED, pb.SUITE_RUN_STATUS_INTERRUPTED
RUNNING = pb.SUITE_RUN_STATUS_RUNNING


def answer(text: str, milliseconds: int = 100) -> Invocation:
    """Return a recorded answer."""
    made = Invocation()
    made.messages.add(role="assistant", text=text)
    made.latency.FromMilliseconds(milliseconds)
    return made


def opened(*specs: EvaluatorSpec, **fields: Any) -> SuiteOpen:
    """Return the opening of a suite; by default it checks for "hello"."""
    return SuiteOpen(suite=fields.pop("suite", "checkout"), evaluators=specs or [CONTAINS], **fields)


def recorded(case_id: str, *texts: str, **fields: Any) -> SuiteCase:
    """Return a case of one turn, with a recorded trial for each text."""
    case = asked(case_id, **fields)
    for text in texts:
        case.recorded_trials.add(answers=[answer(text)])
    return case


def asked(case_id: str, *inputs: str, **fields: Any) -> SuiteCase:
    """Return a case for an agent, with a turn for each input."""
    case = SuiteCase(case_id=case_id, **fields)
    for text in inputs or ("hi",):
        case.turns.add().input.add(role="user", text=text)
    return case


class Outcome:
    """The messages of a RunSuite stream."""

    def __init__(self) -> None:
        self.started = SuiteRun()
        self.results: list[CaseResult] = []
        self.ended: SuiteRun | None = None

    @property
    def verdicts(self) -> dict[str, int]:
        """The verdicts by case."""
        return {result.case_id: result.verdict for result in self.results}

    @property
    def run(self) -> SuiteRun:
        """The ended suite run."""
        assert self.ended is not None
        return self.ended

    def case(self, case_id: str) -> CaseResult:
        """Return the only result of a case."""
        [found] = [result for result in self.results if result.case_id == case_id]
        return found


async def play(
    stub: SuiteServiceStub,
    first: SuiteOpen,
    cases: Iterable[SuiteCase] = (),
    *,
    a_message: int = 50,
    into: Outcome | None = None,
) -> Outcome:
    """Run a suite to its end. a_message: cases in each message. into: collects the answers."""
    cases = list(cases)

    async def requests() -> AsyncIterator[RunSuiteRequest]:
        yield RunSuiteRequest(open=first, cases=cases[:a_message])
        for begin in range(a_message, len(cases), a_message):
            yield RunSuiteRequest(cases=cases[begin : begin + a_message])

    outcome = Outcome() if into is None else into
    async for response in stub.RunSuite(requests()):
        note(outcome, response)
    return outcome


def note(outcome: Outcome, response: pb.RunSuiteResponse) -> None:
    """Add one message."""
    if response.HasField("started"):
        outcome.started = response.started
    outcome.results.extend(response.results)
    if response.HasField("ended"):
        outcome.ended = response.ended


async def get(stub: SuiteServiceStub, run_id: str) -> SuiteRun:
    """Call GetSuiteRun."""
    return (await stub.GetSuiteRun(pb.GetSuiteRunRequest(suite_run_id=run_id))).suite_run


async def stored_cases(stub: SuiteServiceStub, run_id: str, **fields: Any) -> list[CaseResult]:
    """Return all pages of ListCaseResults."""
    found: list[CaseResult] = []
    token = ""
    while True:
        request = pb.ListCaseResultsRequest(suite_run_id=run_id, page_token=token, **fields)
        page = await stub.ListCaseResults(request)
        found += page.results
        token = page.next_page_token
        if not token:
            return found


def ids(results: Sequence[CaseResult]) -> list[str]:
    """Return the ids of cases, in order."""
    return [result.case_id for result in results]


Reply = Callable[[list[dict[str, Any]]], Awaitable[str | int]]


@asynccontextmanager
async def http_agent(reply: Reply) -> AsyncIterator[Connector]:
    """Run an agent over HTTP, and yield its connector. reply: takes the conversation, returns a text or an HTTP status."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.partition("content-length: ")[2].partition("\r")[0])
                said = await reply(json.loads(await reader.readexactly(size))["messages"])
                status, text = (said, "") if isinstance(said, int) else (200, said)
                body = json.dumps({"message": text}).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connector = Connector(name="staging", type="http", base_url=address)
        connector.config.update({"body": {"messages": "{{messages}}"}})
        yield connector
