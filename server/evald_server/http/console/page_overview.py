"""The overview: figures of a period, and current failures."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from starlette.requests import Request
from starlette.responses import Response

from evald.v1 import result_pb2, run_service_pb2, suite_service_pb2
from evald_server.http.site import Site
from evald_server.monitoring import total
from evald_server.store.rollups import DAY, HOUR, ROUNDING
from evald_server.store.runs import RunStore

from .evaluator_types import evaluator_types
from .failures import choice
from .figures import Period, figures, problems, spreads
from .page_suites import suite_rows
from .rendering import render

# The number of bars in the small plots, and the length of each bar's period.
_PERIODS: Final = {"24h": (24, HOUR), "7d": (7, DAY), "30d": (30, DAY)}

# The newest failed and broken runs in the section "What fails now".
_FAILED: Final = 50
_BROKEN: Final = 25

# Most groups of them.
_PROBLEMS: Final = 10

_SUITE_RUNS: Final = 20
_SUITE_ROWS: Final = 5


async def overview(site: Site, request: Request) -> Response:
    """Show the figures of a period."""
    period = request.query_params.get("period") or "24h"
    size, width = choice(request, "period", _PERIODS) or _PERIODS[period]
    now = time.time_ns() // 1000
    pieces = Period(now - now % width - (size - 1) * width, width, size)

    async def listed(
        verdict: result_pb2.Verdict | None, status: run_service_pb2.RunStatus | None, size: int
    ) -> Sequence[run_service_pb2.Run]:
        wanted = run_service_pb2.ListRunsRequest(page_size=size, verdict=verdict, status=status)
        wanted.since.FromMicroseconds(pieces.since)
        found: Sequence[run_service_pb2.Run] = (await site.ask(request, wanted)).runs
        return found

    # These calls come first, because they check the caller's permissions.
    failed = await listed(result_pb2.VERDICT_FAILED, None, _FAILED)
    broken = await listed(None, run_service_pb2.RUN_STATUS_ERROR, _BROKEN)
    suite_runs = await site.ask(request, suite_service_pb2.ListSuiteRunsRequest(page_size=_SUITE_RUNS))
    store = RunStore(site.database)
    counts = await store.rollups(pieces.since, now, width)
    # In a thread, because callers can use any number of evaluator names: 2,000 of them take 30 ms.
    found = await asyncio.to_thread(figures, counts, pieces, await evaluator_types(site, request))
    names = [row.name for row in found.metrics]
    spread = spreads(await store.metric_values(pieces.since, now, width, names))
    newest = sorted([*failed, *broken], key=lambda run: run.create_time.ToNanoseconds(), reverse=True)
    groups = problems(newest)
    return await render(
        site,
        request,
        "overview.html",
        period=period,
        periods=list(_PERIODS),
        now=Timestamp(seconds=now // 1_000_000),
        found=found,
        spreads=spread,
        uncounted=sum(row.measured for row in found.metrics) > sum(one.counted for one in spread.values()),
        p95_error=ROUNDING,
        problems=groups[:_PROBLEMS],
        problems_left_out=sum(one.runs for one in groups[_PROBLEMS:]),
        problem_runs=len(newest),
        running=int(total(site.telemetry.runs.running)),
        queued=int(total(site.telemetry.runs.queued)),
        spent_usd=site.telemetry.judges.spent_usd(),
        day_limit_usd=site.settings.judge_max_usd_per_day,
        suites=suite_rows(suite_runs.suite_runs)[:_SUITE_ROWS],
        calls=_calls(site),
    )


def _calls(site: Site) -> list[tuple[str, dict[str, int]]]:
    """Return the RPCs that evaluated since the server started, with their numbers of verdicts."""
    site.telemetry.fold()
    rows = sorted(site.telemetry.evaluations.counts().items())
    return [(name, counts) for name, counts in rows if any(counts.values())]
