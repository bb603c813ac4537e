"""Client of SuiteService: runs suites, lists and compares suite runs."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from evald.connection import MAX_MESSAGE_BYTES, channel_options, open_to
from evald.errors import InvalidRequest
from evald.stream_status import StreamStatus
from evald.v1 import evaluation_service_pb2, evaluator_pb2, suite_service_pb2
from evald_server import wire_pb2
from evald_server.methods import CONNECTORS
from evald_server.suites.comparison import MAX_DROP

from .server_client import ServerClient
from .server_connection import open_channel, serving

DATA_DIR: Final = ".evald"
"""The directory, in the working directory, in which the server inside the command stores suite runs."""

# Limits of one message: large enough that a message costs less than 1 % of its cases.
_MOST_CASES: Final = 128
_MOST_BYTES: Final = 1 << 20
# Maximum number of specs per check: a fifth of a server's default limit.
_MOST_SPECS: Final = 20
_PAGE: Final = 1000
# Deadline of a call. A comparison reads two suite runs from the disk.
_SECONDS: Final = 300.0

_pb = suite_service_pb2


@asynccontextmanager
async def open_suites(args: argparse.Namespace, *, large_batch: bool = False) -> AsyncIterator["SuiteClient"]:
    """Yield a client of the server. A server inside the command stores in DATA_DIR by default. See `serving`."""
    async with serving(args, DATA_DIR, large_batch=large_batch) as (server, credentials):
        address, access = open_to(server, **credentials)
        async with open_channel(address, access, channel_options(MAX_MESSAGE_BYTES)) as channel:
            yield SuiteClient(channel, address, access)


class SuiteClient(ServerClient):
    """A client that runs suites, and reads and compares suite runs."""

    async def run_suite(
        self, opening: _pb.SuiteOpen, cases: Iterable[bytes]
    ) -> AsyncIterator[_pb.RunSuiteResponse]:
        """Run a suite. Yields the server's responses; the last has the suite run with its verdict.

        cases: serialised cases.
        """
        # wire_pb2 has the cases as bytes, which is how they are stored.
        run_suite: Any = self._channel.stream_stream(
            "/evald.v1.SuiteService/RunSuite",
            request_serializer=wire_pb2.RunSuiteRequest.SerializeToString,
            response_deserializer=_pb.RunSuiteResponse.FromString,
        )
        call = run_suite(metadata=self._access.headers())
        status = StreamStatus(call)
        sending = asyncio.ensure_future(_send(call, opening, cases))
        try:
            with self._typed_errors:
                try:
                    async for response in call:
                        yield response
                        # An error of the sender must end the call, else the server would wait for cases.
                        if sending.done():
                            sending.result()
                except grpc.aio.AioRpcError as problem:
                    raise await status.behind(problem) from None
                await sending
        finally:
            sending.cancel()
            call.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def check(self, opening: _pb.SuiteOpen) -> None:
        """Let the server check an opening, without running anything. Raises the same errors as `run_suite`."""
        only = _pb.SuiteOpen(validate_only=True)
        only.MergeFrom(opening)
        async for _ in self.run_suite(only, ()):
            pass

    async def suite_runs(self, limit: int, **wanted: Any) -> list[_pb.SuiteRun]:
        """Return the suite runs that match the filters, latest first. wanted: fields of ListSuiteRunsRequest."""
        found: list[_pb.SuiteRun] = []
        request = _pb.ListSuiteRunsRequest(**wanted, page_size=limit)
        async for page in self.pages(request, _SECONDS):
            found.extend(page.suite_runs)
            if len(found) >= limit:
                break
        return found[:limit]

    async def cases(self, suite_run_id: str, **wanted: Any) -> AsyncIterator[_pb.CaseResult]:
        """Yield the matching cases of a suite run, ordered by id. wanted: fields of ListCaseResultsRequest."""
        request = _pb.ListCaseResultsRequest(suite_run_id=suite_run_id, **wanted, page_size=_PAGE)
        async for page in self.pages(request, _SECONDS):
            for result in page.results:
                yield result

    async def suite_run(self, suite_run_id: str) -> _pb.SuiteRun | None:
        """Return a suite run, or None if there is none."""
        request = _pb.GetSuiteRunRequest(suite_run_id=suite_run_id)
        try:
            found: _pb.SuiteRun = (await self.call(request, _SECONDS)).suite_run
        except InvalidRequest as problem:
            if problem.code != "NOT_FOUND":
                raise
            return None
        return found

    async def compare(self, base_id: str, new_id: str, max_drop: float = MAX_DROP) -> _pb.SuiteComparison:
        """Compare two suite runs."""
        request = _pb.CompareSuiteRunsRequest(base_id=base_id, new_id=new_id, max_drop=max_drop)
        found: _pb.SuiteComparison = (await self.call(request, _SECONDS)).comparison
        return found

    async def connector_id(self, name_or_id: str) -> str:
        """Return the id of a stored connector. Raises CommandError if there is none."""
        hint = "define it in the suite or in --connector FILE, or store it on a server with evald connectors create"
        return str((await self.find(CONNECTORS, name_or_id, hint)).id)

    async def violations(
        self, specs: Sequence[evaluator_pb2.EvaluatorSpec]
    ) -> list[evaluation_service_pb2.SpecViolation]:
        """Return the violations of specs, without running them."""
        found = []
        for start in range(0, len(specs), _MOST_SPECS):
            part = specs[start : start + _MOST_SPECS]
            request = evaluation_service_pb2.ValidateSpecsRequest(evaluators=part)
            answer = await self.call(request, _SECONDS)
            for violation in answer.violations:
                violation.index += start
                found.append(violation)
        return found


async def _send(call: Any, opening: _pb.SuiteOpen, cases: Iterable[bytes]) -> None:
    """Send the opening and the cases, and half-close. Cancels the call if a case cannot be read."""
    message = wire_pb2.RunSuiteRequest(open=opening)
    try:
        size = 0
        for case in cases:
            message.cases.append(case)
            size += len(case)
            if len(message.cases) == _MOST_CASES or size >= _MOST_BYTES:
                await call.write(message)
                message, size = wire_pb2.RunSuiteRequest(), 0
        await call.write(message)
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.RpcError):
        return  # the server has ended the call; the reader gets the status
    except BaseException:
        call.cancel()
        raise
