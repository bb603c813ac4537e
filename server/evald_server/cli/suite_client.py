"""Calls of SuiteService, on a named server or on one inside the command that stores results in a directory."""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from evald import errors
from evald.connection import TypedErrors, channel_options
from evald.v1 import suite_service_pb2, suite_service_pb2_grpc

from .server_connection import open_server

DATA_DIR: Final = ".evald"
"""Where the server inside a command stores results, below the working directory."""

# Comparing suite runs of a million cases takes minutes.
_SECONDS: Final = 600.0


@asynccontextmanager
async def open_suites(args: argparse.Namespace) -> AsyncIterator["SuiteClient"]:
    """Connect to the server that stores suite runs."""
    if not args.data_dir:
        args.data_dir = os.environ.get("EVALD_DATA_DIR") or DATA_DIR
    async with (
        open_server(args) as address,
        grpc.aio.insecure_channel(address, options=channel_options(-1)) as channel,
    ):
        yield SuiteClient(channel, address)


class SuiteClient:
    """The calls. Errors are those of `evald.errors`."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self._stub = suite_service_pb2_grpc.SuiteServiceStub(channel)
        self._typed_errors = TypedErrors(address)

    async def _call(self, method: str, request: Any) -> Any:
        with self._typed_errors:
            return await getattr(self._stub, method)(request, timeout=_SECONDS)

    async def get(self, suite_run_id: str) -> suite_service_pb2.SuiteRun | None:
        """Return a suite run; None when there is none."""
        request = suite_service_pb2.GetSuiteRunRequest(suite_run_id=suite_run_id)
        try:
            found: suite_service_pb2.SuiteRun = (await self._call("GetSuiteRun", request)).suite_run
        except errors.InvalidRequest as problem:
            if problem.code != "NOT_FOUND":
                raise
            return None
        return found

    async def newest_first(self, suite: str, target: str = "") -> AsyncIterator[suite_service_pb2.SuiteRun]:
        """Yield the suite runs of a suite, of any status. target: "" for all."""
        token = ""
        while True:
            request = suite_service_pb2.ListSuiteRunsRequest(suite=suite, target=target, page_token=token)
            page = await self._call("ListSuiteRuns", request)
            for run in page.suite_runs:
                yield run
            token = page.next_page_token
            if not token:
                return

    async def compare(self, base_id: str, new_id: str, max_drop: float) -> suite_service_pb2.SuiteComparison:
        """Compare two suite runs that are completed."""
        request = suite_service_pb2.CompareSuiteRunsRequest(base_id=base_id, new_id=new_id, max_drop=max_drop)
        found: suite_service_pb2.SuiteComparison = (await self._call("CompareSuiteRuns", request)).comparison
        return found
