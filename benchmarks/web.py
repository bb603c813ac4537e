"""What HTTP costs beside gRPC, and gRPC beside somebody who clicks through the console."""

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from google.protobuf.json_format import MessageToJson

from . import processes, workload
from .lab import UNARY, Lab
from .load import BrokenRun
from .pairs import Row, at_most, paired
from .processes import Server

_HEADERS: Final = {"Content-Type": "application/json"}

_PAGES: Final = (
    "/console/overview",
    "/console/runs",
    "/console/scenarios",
    "/console/suites",
    "/console/evaluators",
)
_CLICKS_PER_SECOND: Final = 5


def web_unary(lab: Lab) -> list[Row]:
    """Compare one call at a time, each on a connection that is kept."""
    server, port = start_web(lab)
    body, _ = lab.unary()
    connection = http.client.HTTPConnection(f"127.0.0.1:{port}")
    data = MessageToJson(workload.unary_request(), indent=None).encode()

    def over_http() -> float:
        times: list[float] = []
        answer, end = b"", time.perf_counter() + lab.seconds
        while (began := time.perf_counter()) < end:
            connection.request("POST", UNARY, data, _HEADERS)
            answer = connection.getresponse().read()
            times.append(1000 * (time.perf_counter() - began))
        if b'"success": true' not in answer:
            raise BrokenRun(f"the call over HTTP did not pass: {answer[:300]!r}")
        return statistics.median(times)

    pairs = paired(
        lab.rounds,
        over_http,
        lambda: lab.load(UNARY, body, "--expect", "1", server=server, in_flight=1).p50,
    )
    connection.close()
    added = [ours - theirs for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True)]
    figure = f"p50 of `EvaluateUnary` over HTTP with {len(data) / 1000:.1f} KB of JSON - over gRPC, ms"
    return [Row(figure, at_most(1.5), added, pairs.row(figure, None, "ms, one call at a time").detail)]


def beside_pages(lab: Lab) -> list[Row]:
    """Compare calls beside pages with calls alone."""
    server, port = start_web(lab)
    body, _ = lab.unary()

    def alone() -> float:
        return lab.load(UNARY, body, "--expect", "1", server=server).p99

    def disturbed() -> float:
        with _clicking(port):
            return alone()

    figure = (
        f"p99 of unary calls beside {_CLICKS_PER_SECOND} pages of the console a second / alone, 16 in flight"
    )
    return [paired(lab.rounds, disturbed, alone).row(figure, at_most(1.25), "ms")]


@contextmanager
def _clicking(port: int) -> Iterator[None]:
    """Load one page after the other while the block runs. Raises BrokenRun if one is not shown."""
    ended = threading.Event()
    problems: list[str] = []

    def click() -> None:
        connection = http.client.HTTPConnection(f"127.0.0.1:{port}")
        clicks = 0
        while not ended.wait(1 / _CLICKS_PER_SECOND):
            page = _PAGES[clicks % len(_PAGES)]
            clicks += 1
            connection.request("GET", page)
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                problems.append(f"{page}: {response.status}")
        connection.close()

    clicker = threading.Thread(target=click)
    clicker.start()
    try:
        yield
    finally:
        ended.set()
        clicker.join()
    if problems:
        raise BrokenRun(f"pages that are not shown: {', '.join(sorted(set(problems)))}")


def start_web(lab: Lab, **settings: Any) -> tuple[Server, int]:
    """Start a server with a web port. Returns both; the second line names the port."""
    server = lab.start(lambda: processes.evald(web="127.0.0.1:0", **settings))
    return server, int(server.read_line().rpartition(":")[2])
