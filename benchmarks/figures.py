"""The figures: the measurement, the comparison and the bound of each."""

import asyncio
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from evald.v1 import evaluation_service_pb2
from evald_server.auth.keys import add_key, new_key
from evald_server.auth.principal import Role

from . import (
    access,
    beside_runs,
    live,
    load,
    pages,
    processes,
    remotes,
    runs,
    stored_runs,
    suites,
    web,
    workload,
)
from .lab import BATCH, BATCH_OPTIONS, SESSION, STREAM, UNARY, Lab
from .pairs import Bound, Pairs, Row, at_least, at_most, number, paired
from .processes import BenchmarkWorker, Server

_HEALTH: Final = "/grpc.health.v1.Health/Check"

OPEN_STREAMS: Final = 1000
_JUDGING: Final = 100

# Rate limit of the loud principal in calls per second; it sends four times as many.
_LOUD_RATE: Final = 100.0

_PLACES: Final = 16


def unary(lab: Lab) -> list[Row]:
    body, name = lab.unary()
    return [_unary_row(lab, "`EvaluateUnary` / echo, calls/s", 0.75, body, name)]


def stream(lab: Lab) -> list[Row]:
    body, name = lab.stream()
    pairs = paired(
        lab.rounds,
        # `lab.stream` has checked that the answer is one message. No --expect: a stall of the machine may split it.
        lambda: lab.load(STREAM, body).calls,
        lambda: lab.load(f"/echo.Stream/{name}", body, "--expect", "1", server=lab.echo).calls,
    )
    return [
        pairs.row("`Evaluate`, all results in one message / echo stream of one", at_least(0.80), "calls/s")
    ]


def session(lab: Lab) -> list[Row]:
    body, name = lab.session()
    options = ("--bidi", "--silent-first")
    pairs = paired(
        lab.rounds,
        lambda: lab.load(SESSION, body, *options).calls,
        lambda: lab.load(f"/echo.Session/{name}", body, *options, server=lab.echo).calls,
    )
    return [pairs.row("`EvaluateSession`, one small turn a message / echo bidi", at_least(0.42), "turns/s")]


def open_loop(lab: Lab) -> list[Row]:
    """Measure the latency with arrival times that do not depend on the server, at shares of its peak rate."""
    body, name = lab.unary()
    peak = statistics.median(lab.load(UNARY, body, "--expect", "1").calls for _ in range(3))
    rows = []
    for share in (0.3, 0.6):
        rate = ("--poisson", "--rate", f"{share * peak:.0f}", "--expect", "1")
        found = [
            (
                load.run(lab.evald.port, UNARY, body, 3 * lab.seconds, *rate),
                load.run(lab.echo.port, f"/echo.Unary/{name}", body, 3 * lab.seconds, *rate),
            )
            for _ in range(lab.rounds)
        ]
        for percentile in ("p50", "p99"):
            pairs = Pairs(
                *zip(*[(getattr(a, percentile), getattr(b, percentile)) for a, b in found], strict=True)
            )
            figure = f"open loop at {share:.0%} of peak, {percentile} of `EvaluateUnary` / echo's"
            rows.append(pairs.row(figure, None, f"ms; Poisson arrivals, {share * peak:,.0f} calls/s"))
    return rows


def batch(lab: Lab) -> list[Row]:
    body, _ = lab.unary()
    pairs = paired(
        lab.rounds,
        lab.batch_turns,
        lambda: lab.load(UNARY, body, "--expect", "1").calls,
    )
    figure = "`EvaluateBatch`, 256 turns a message / own unary, turns/s"
    return [pairs.row(figure, at_least(7), f"turns/s, {lab.evald.children} batch processes")]


def pydantic_evals(lab: Lab) -> list[Row]:
    worker = lab.start(_PydanticEvals)
    pairs = paired(lab.rounds, lab.batch_turns, lambda: worker.per_second(lab.seconds))
    figure = "`EvaluateBatch` / pydantic-evals in-process at its best setting, same five checks"
    detail = f"turns/s, {lab.evald.children} batch processes; {worker.setting}"
    return [pairs.row(figure, at_least(14), detail)]


def suite(lab: Lab) -> list[Row]:
    worker = lab.start(_PydanticEvals)
    server = lab.start(lambda: processes.evald(data_dir=lab.directory / "suites"))
    messages = list(suites.requests(suites.CASES))
    pairs = paired(
        lab.rounds,
        lambda: suites.per_second(server, messages),
        lambda: worker.per_second(lab.seconds),
    )
    figure = (
        f"`RunSuite` of {suites.CASES:,} recorded cases, each stored in SQLite / pydantic-evals in-process at its "
        "best setting, same five checks"
    )
    return [pairs.row(figure, at_least(3), f"cases/s; {worker.setting}")]


def suite_command(lab: Lab) -> list[Row]:
    worker = lab.start(_PydanticEvals)
    files = {}
    for count in (1, suites.CASES):
        files[count] = lab.directory / f"suite-{count}.jsonl"
        suites.write_file(files[count], count)

    def ours(count: int) -> float:
        return suites.command_seconds([sys.executable, "-m", "evald_server", "test", str(files[count])])

    def theirs(count: int) -> float:
        return suites.command_seconds(worker.command(files[count]), worker.setup)

    whole, later = Pairs([], []), Pairs([], [])
    for round_ in range(lab.rounds + 1):
        seconds = [(side(suites.CASES), side(1)) for side in (ours, theirs)]
        if not round_:
            continue  # the first round is a warm-up
        whole = whole.plus(*(suites.CASES / many for many, _ in seconds))
        later = later.plus(*((suites.CASES - 1) / (many - one) for many, one in seconds))
    what = f"`evald test FILE`, {suites.CASES:,} recorded cases / pydantic-evals with the same cases"
    return [
        whole.row(f"{what}: whole commands", at_least(3), f"cases/s; {worker.setting}"),
        later.row(f"{what}: without what a single case takes", None, f"cases/s; {worker.setting}"),
    ]


def many_evaluators(lab: Lab) -> list[Row]:
    body, name = lab.unary(copies=20)
    return [_unary_row(lab, "100 evaluators / echo", 0.30, body, name)]


def many_messages(lab: Lab) -> list[Row]:
    body, name = lab.unary(messages=1000)
    return [_unary_row(lab, "1,000 messages / echo", 0.65, body, name)]


def beside_batch(lab: Lab) -> list[Row]:
    # Warm-up: the batch processes must start.
    lab.batch_turns()
    return [
        _beside(lab, in_flight, at_most(5), "a running batch", BATCH, lab.batch, *BATCH_OPTIONS)
        for in_flight in (16, 1)
    ]


def beside_regex(lab: Lab) -> list[Row]:
    request = workload.catastrophic_request()
    (answer,) = lab.answers(UNARY, [request])
    summary = evaluation_service_pb2.EvaluateUnaryResponse.FromString(answer).summary
    if not summary.success:
        raise load.BrokenRun(f"the patterns must run and find nothing: {summary.reason}")
    body = lab.body("regex", [request])
    return [
        _beside(lab, in_flight, at_most(2), "a catastrophic regex", UNARY, body, "--expect", "1")
        for in_flight in (16, 1)
    ]


def beside_principal(lab: Lab) -> list[Row]:
    """Measure one principal's calls while another sends four times the calls that its key allows."""
    body, _ = lab.unary()
    file = lab.directory / "principals.toml"
    bearers = []
    for principal, rate in (("quiet", None), ("loud", _LOUD_RATE)):
        key, kept = new_key(principal, [Role.CALLER], rate=rate)
        add_key(file, kept)
        bearers.append(("--authorization", f"Bearer {key}"))
    quiet, loud = bearers
    server = lab.start(lambda: processes.evald(keys_file=file))
    offered = ("--rate", f"{4 * _LOUD_RATE:g}", *loud)

    def alone() -> float:
        found = lab.load(UNARY, body, "--expect", "1", "--poisson", "--rate", "200", *quiet, server=server)
        if found.refused:
            raise load.BrokenRun("the principal without a limit was refused")
        return found.p99

    def disturbed() -> float:
        with lab.beside(UNARY, body, *offered, server=server):
            return alone()

    if not load.run(server.port, UNARY, body, lab.seconds, *offered).refused:
        raise load.BrokenRun("the principal was not over its rate")
    row = paired(lab.rounds, disturbed, alone).row("", at_most(2), "ms")
    figure = f"p99 of unary calls beside another principal at 4 times its {_LOUD_RATE:g} calls/s / alone"
    return [Row(figure, row.bound, row.values, f"{row.detail}; open loop, 200 calls/s")]


def memory(lab: Lab) -> list[Row]:
    frames = [frame.SerializeToString() for frame in workload.session(turns=1)]
    _, name = lab.session()
    pairs = paired(
        lab.rounds,
        lambda: _bytes_per_stream(processes.evald(), SESSION, frames),
        lambda: _bytes_per_stream(processes.echo(lab.directory), f"/echo.Session/{name}", frames),
    )
    return [
        pairs.row(
            f"memory of {OPEN_STREAMS:,} open sessions / of {OPEN_STREAMS:,} idle echo streams",
            at_most(1.5),
            "bytes a stream",
        )
    ]


def session_growth(lab: Lab) -> list[Row]:
    body, _ = lab.session()
    rounds = [
        lab.load(SESSION, body, "--bidi", "--silent-first", "--by-index") for _ in range(lab.rounds + 1)
    ][1:]
    # Place 0 is the opening, so place 2 is turn 2.
    pairs = Pairs([found.p50_by_index[100] for found in rounds], [found.p50_by_index[2] for found in rounds])
    # If the cost of a turn grew with the number of earlier turns, the ratio would be far higher. The medians come from
    # a few dozen calls each, and vary by 10 % without a cause.
    return [pairs.row("a session's turn 100 / its turn 2, median time", at_most(1.2), "ms")]


def imports(lab: Lab) -> list[Row]:
    pairs = paired(
        lab.rounds,
        lambda: _import_ms("evald, evald.aio, evald.client"),
        lambda: _import_ms("grpc.aio, google.protobuf.message, google.protobuf.struct_pb2"),
    )
    return [
        pairs.row("`import evald` with both clients / `import grpc.aio` and protobuf", at_most(2.5), "ms")
    ]


def start(lab: Lab) -> list[Row]:
    def ready() -> float:
        with processes.evald() as server:
            return server.start_seconds

    ready()
    values = [ready() for _ in range(lab.rounds)]
    return [Row("server ready after its start, seconds", at_most(1.5), values, "to the line that says so")]


def overload(lab: Lab) -> list[Row]:
    """Send four times the server's capacity: calls that wait, and calls that compute."""
    return [*_overload_waiting(lab), _overload_computing(lab)]


def judge(lab: Lab) -> list[Row]:
    """Compare calls to a judge whose endpoint answers at once with the same requests by the bare `openai` client."""
    endpoint = lab.start(processes.completions)
    server = lab.start(lambda: _judging(endpoint))
    request = workload.judge_request()
    (answer,) = lab.answers(UNARY, [request], server)
    summary = evaluation_service_pb2.EvaluateUnaryResponse.FromString(answer).summary
    if not summary.success:
        raise load.BrokenRun(f"the judge must pass: {summary.reason}")
    sent = workload.as_sent(summary.results[0].raw_request)
    body = lab.body("judge", [request])
    return [
        _judge_row(
            lab, server, body, json.dumps({"base_url": _url(endpoint), "body": sent, "in_flight": many}), many
        )
        for many in (16, 1)
    ]


def judge_memory(lab: Lab) -> list[Row]:
    request = workload.judge_request()
    values = []
    for _ in range(lab.rounds):
        # Slow enough for all calls to be in flight at the same time.
        with processes.completions(seconds=0.5) as endpoint, _judging(endpoint) as server:
            values.append(asyncio.run(_hold_judging(server, request)) / 1e6)
    detail = (
        "private memory, over that of the idle server before its first question; the client's import included"
    )
    return [Row(f"memory of {_JUDGING} judge calls in flight, MB", at_most(60), values, detail)]


FIGURES: Final[Mapping[str, Callable[[Lab], Sequence[Row]]]] = {
    "unary": unary,
    "auth": access.auth,
    "stream": stream,
    "session": session,
    "open-loop": open_loop,
    "batch": batch,
    "pydantic-evals": pydantic_evals,
    "suite": suite,
    "suite-command": suite_command,
    "100-evaluators": many_evaluators,
    "1000-messages": many_messages,
    "beside-batch": beside_batch,
    "beside-regex": beside_regex,
    "beside-principal": beside_principal,
    "memory": memory,
    "session-growth": session_growth,
    "import": imports,
    "start": start,
    "overload": overload,
    "judge": judge,
    "judge-memory": judge_memory,
    "remote-hop": remotes.hop,
    "remote-ten": remotes.ten,
    "remote-beside-bad": remotes.beside_bad,
    "remote-crowd": remotes.crowd,
    "runs": runs.runs,
    "beside-runs": beside_runs.beside_runs,
    "web": web.web_unary,
    "beside-pages": web.beside_pages,
    "pages": pages.pages,
    "live": live.live,
    "first-page": live.first_page,
    "stored-runs": stored_runs.lists,
    "stored-turns": stored_runs.turns,
}


def _url(endpoint: Server) -> str:
    return f"http://{endpoint.address}/v1"


def _judging(endpoint: Server) -> Server:
    """Start a server whose judge uses this endpoint, without a cache, and with enough concurrency for all requests."""
    return processes.evald(
        judge_base_url=_url(endpoint),
        judge_model="bench",
        judge_cache_bytes=0,
        judges=json.dumps({"default": {"concurrency": 2 * _JUDGING}}),
    )


def _judge_row(lab: Lab, server: Server, body: Path, setup: str, in_flight: int) -> Row:
    worker = lab.start(
        lambda: BenchmarkWorker([sys.executable, "-m", "benchmarks.openai_worker"], setup=setup)
    )
    pairs = paired(
        lab.rounds,
        lambda: 1e3 / lab.load(UNARY, body, "--expect", "1", server=server, in_flight=in_flight).calls,
        lambda: 1e3 / worker.per_second(lab.seconds),
    )
    figure = f"time of a call with `llm-judge` / of the bare `openai` client's, {in_flight} in flight"
    return pairs.row(figure, at_most(2), "ms")


async def _hold_judging(server: Server, request: evaluation_service_pb2.EvaluateUnaryRequest) -> float:
    """Return the growth of the server's memory from idle to many judge calls in flight, in bytes."""
    before = server.resident_bytes
    data = request.SerializeToString()
    # Several channels, to stay below the server's limit of 100 streams per connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(server.address, options) for _ in range(4)]
    most = 0

    async def ask(index: int) -> None:
        call: Any = channels[index % len(channels)].unary_unary(UNARY)
        answer = evaluation_service_pb2.EvaluateUnaryResponse.FromString(await call(data))
        if not answer.summary.success:
            raise load.BrokenRun(f"the judge must pass: {answer.summary.reason}")

    # The server raises its limit of concurrent requests step by step: 8, 16, 32, 64, 128.
    for _ in range(6):
        asked = asyncio.gather(*(ask(index) for index in range(_JUDGING)))
        while not asked.done():
            await asyncio.sleep(0.1)
            most = max(most, server.resident_bytes)
        await asked
    for channel in channels:
        await channel.close()
    return most - before


def _unary_row(lab: Lab, figure: str, limit: float, body: Path, name: str) -> Row:
    pairs = paired(
        lab.rounds,
        lambda: lab.load(UNARY, body, "--expect", "1").calls,
        lambda: lab.load(f"/echo.Unary/{name}", body, "--expect", "1", server=lab.echo).calls,
    )
    return pairs.row(figure, at_least(limit), "calls/s")


def _beside(
    lab: Lab,
    in_flight: int,
    bound: Bound | None,
    what: str,
    path: str,
    beside: Path,
    *options: str,
) -> Row:
    body, _ = lab.unary()

    def alone() -> float:
        return lab.load(UNARY, body, "--expect", "1", in_flight=in_flight).p99

    def disturbed() -> float:
        with lab.beside(path, beside, *options):
            return alone()

    figure = f"p99 of unary calls beside {what} / alone, {in_flight} in flight"
    return paired(lab.rounds, disturbed, alone).row(figure, bound, "ms")


def _overload_waiting(lab: Lab) -> list[Row]:
    """Send four times its capacity to a small server whose evaluator waits."""
    server = lab.start(
        lambda: processes.evald(
            plugins=workload.PLUGINS, max_inflight=_PLACES, max_queued=_PLACES, max_queue_seconds=1
        )
    )
    request = workload.unary_request()
    del request.request.evaluators[:]
    request.request.evaluators.add(type="bench.waiting")
    (answer,) = lab.answers(UNARY, [request], server)
    if not evaluation_service_pb2.EvaluateUnaryResponse.FromString(answer).summary.success:
        raise load.BrokenRun("the waiting evaluator did not pass")
    body = lab.body("waiting", [request])
    peak = statistics.median(lab.load(UNARY, body, server=server).calls for _ in range(3))
    goodput, refusal_ms, health_ms = [], [], []
    for _ in range(lab.rounds):
        with _health_beside(lab, server) as health:
            found = load.run(server.port, UNARY, body, lab.seconds, "--rate", f"{4 * peak:.0f}", streams=1)
        if not found.refused:
            raise load.BrokenRun("nothing was refused: this was no overload")
        goodput.append(found.calls / peak)
        refusal_ms.append(found.refused_p50)
        health_ms.append(health[0])
    detail = f"peak {number(peak)} calls/s, {_PLACES} places, an evaluator that waits 20 ms, open loop"
    return [
        Row("goodput at 4 times capacity / peak", at_least(0.8), goodput, detail),
        Row("refusals at 4 times capacity, median ms", at_most(5), refusal_ms, detail),
        Row("health at 4 times capacity, p99 ms", None, health_ms, f"50 checks/s, all answered; {detail}"),
    ]


def _overload_computing(lab: Lab) -> Row:
    """Measure calls that compute. They are not refused; more calls in flight must not reduce the throughput."""
    body, _ = lab.unary()
    pairs = paired(
        lab.rounds,
        lambda: lab.load(UNARY, body, "--expect", "1", in_flight=64).calls,
        lambda: lab.load(UNARY, body, "--expect", "1").calls,
    )
    return pairs.row("goodput of calls that compute, 64 / 16 in flight", at_least(0.8), "calls/s")


@contextmanager
def _health_beside(lab: Lab, server: Server) -> Iterator[list[float]]:
    """Send 50 health checks per second while the block runs. The yielded list gets their p99 at the end."""
    found: list[float] = []
    body = lab.body("health", [b""])
    words = load.command(
        server.port, _HEALTH, body, lab.seconds, "--rate", "50", "--expect", "1", connections=1, streams=1
    )
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield found
        found.append(load.parsed(*process.communicate()).p99)


class _PydanticEvals(BenchmarkWorker):
    """A pydantic-evals worker in its own virtual environment, so that its packages do not mix with ours."""

    _PACKAGES: Final = ("pydantic-evals", "jsonschema-rs", "uvloop")

    def __init__(self) -> None:
        environment = load.BUILD / "pydantic-evals"
        python = environment / "bin" / "python"
        if not (environment / ".ready").exists():
            print("installing pydantic-evals, once", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *self._PACKAGES], check=True)
            (environment / ".ready").touch()
        turns = [
            {
                "answer": workload.answer(number),
                "latency_ms": workload.LATENCY_MS,
                "tokens": workload.INPUT_TOKENS + workload.OUTPUT_TOKENS,
            }
            for number in range(workload.BATCH_ITEMS)
        ]
        setup = {
            "schema": workload.SCHEMA,
            "pattern": workload.PATTERN,
            "substrings": workload.SUBSTRINGS,
            "max_latency_ms": workload.MAX_LATENCY_MS,
            "max_tokens": workload.MAX_TOKENS,
            "turns": turns,
        }
        self._program = [str(python), str(Path(__file__).with_name("pydantic_evals_worker.py"))]
        self.setup = json.dumps(setup | {"turns": []})
        super().__init__(self._program, setup=json.dumps(setup))
        self.setting = self.first_line

    def command(self, file: Path) -> list[str]:
        """Return the command that evaluates a file's cases at the best setting. It reads `setup` from stdin."""
        concurrency, loop = self.setting.removeprefix("max_concurrency=").split(", ")
        return [*self._program, str(file), concurrency, loop]


def _bytes_per_stream(server: Server, path: str, frames: Sequence[bytes]) -> float:
    with server:
        before, after = asyncio.run(_hold(server, path, frames))
        return (after - before) / OPEN_STREAMS


async def _hold(server: Server, path: str, frames: Sequence[bytes]) -> tuple[int, int]:
    """Return the server's memory before and with OPEN_STREAMS open streams, after one answer on each."""
    # Below the server's limit of 100 streams per connection.
    a_channel = 80
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(server.address, options) for _ in range(math.ceil(OPEN_STREAMS / a_channel))
    ]

    async def opened(index: int) -> Any:
        call: Any = channels[index % len(channels)].stream_stream(path)()
        for frame in frames:
            await call.write(frame)
        assert await call.read() is not grpc.aio.EOF
        return call

    # Warm-up: opens the connections, and creates everything that is created on first use.
    for index in range(len(channels)):
        await (await opened(index)).done_writing()
    before = server.resident_bytes
    calls = [await opened(index) for index in range(OPEN_STREAMS)]
    after = server.resident_bytes
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    return before, after


def _import_ms(names: str) -> float:
    """Return the time of an import in a new process, in milliseconds."""
    script = f"import time; began = time.perf_counter(); import {names}; print(time.perf_counter() - began)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1000
