"""Figures of remote evaluators."""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald.v1 import evaluation_service_pb2

from . import load, processes, workload
from .lab import TWINS, UNARY, Lab
from .pairs import Row, at_least, at_most, number, paired
from .processes import Process, Server
from .remote_plugin import INSTANCES, SERVICE, TYPES

_FAST: Final = "bench.fast"
_WAITS: Final = tuple(range(5, 55, 5))
_HONEST: Final = tuple(f"bench.wait-{wait}" for wait in (1, 2, 3))
_BAD: Final = ("bench.hang", "bench.crash", "bench.flap", "bench.lie")

# Calls per second to the failing plugins: enough to keep them failing, too few to be a load themselves.
_BAD_RATE: Final = 50

# Seconds to wait until plugins are connected.
_PATIENCE: Final = 20


def hop(lab: Lab) -> list[Row]:
    """Compare the latency that a remote adds to a call with that of a bare hop with the same bytes."""
    plugin = lab.start(partial(_listening, _FAST))
    without = lab.body("without", [_request("contains")])
    body = lab.body("remote", [_request("contains", _FAST)])
    twins = []
    for _ in range(TWINS):
        listening = lab.start(lambda: _evald(remote_targets=plugin.address))
        dialled = lab.start(_evald)
        lab.start(partial(_Plugin, "connect", dialled.address, _FAST))
        twins.append((lab.start(lambda: _hop(lab, plugin)), listening, dialled))
        for server in (listening, dialled):
            _answered(lab, server, "contains", _FAST)

    def p50(server: Server, path: str, body: Path) -> float:
        return lab.load(path, body, "--expect", "1", server=server, in_flight=1).p50

    rounds = []
    for bare, listening, dialled in itertools.islice(itertools.cycle(twins), lab.rounds + 1):
        base = p50(bare, "/hop.Via/x", without) - p50(bare, "/hop.Direct/x", without)
        adds = [p50(server, UNARY, body) - p50(server, UNARY, without) for server in (listening, dialled)]
        rounds.append((base, *adds))
    bases, *ways = zip(*rounds[1:], strict=True)
    rows = []
    for name, bound, values in zip(("listening", "over Attach"), (1.5, 1.6), ways, strict=True):
        detail = (
            f"{number(statistics.median(values))} : {number(statistics.median(bases))} ms, one call at a time"
        )
        ratios = [mine / base for mine, base in zip(values, bases, strict=True)]
        rows.append(
            Row(
                f"what a remote evaluator adds, {name} / what a bare hop adds", at_most(bound), ratios, detail
            )
        )
    return rows


def ten(lab: Lab) -> list[Row]:
    types = [f"bench.wait-{wait}" for wait in _WAITS]
    plugin = lab.start(lambda: _listening(*types))
    server = lab.start(lambda: _evald(remote_targets=plugin.address))
    _answered(lab, server, *types)
    every, slowest = lab.body("ten", [_request(*types)]), lab.body("slowest", [_request(types[-1])])
    pairs = paired(
        lab.rounds,
        lambda: lab.load(UNARY, every, "--expect", "1", server=server, in_flight=1).p50,
        lambda: lab.load(UNARY, slowest, "--expect", "1", server=server, in_flight=1).p50,
    )
    return [pairs.row("ten remotes in one call, 5 to 50 ms / the slowest alone", at_most(1.3), "ms")]


def beside_bad(lab: Lab) -> list[Row]:
    plugins = [lab.start(lambda name=name: _listening(name)) for name in (*_HONEST, *_BAD)]  # type: ignore[misc]
    server = lab.start(lambda: _evald(remote_targets=",".join(plugin.address for plugin in plugins)))
    answer = _answered(lab, server, *_HONEST)
    if not answer.summary.success:
        raise load.BrokenRun(answer.summary.reason)
    honest = lab.body("honest", [_request(*_HONEST)])
    bad = lab.body("bad", [_request(*_BAD, seconds=0.25)])

    def alone() -> float:
        return lab.load(UNARY, honest, "--expect", "1", server=server, in_flight=4).p99

    def disturbed() -> float:
        with lab.beside(UNARY, bad, "--rate", str(_BAD_RATE), "--expect", "1", server=server):
            return alone()

    pairs = paired(lab.rounds, disturbed, alone)
    return [pairs.row("p99 of three honest remotes beside four bad ones / alone", at_most(2), "ms")]


def crowd(lab: Lab) -> list[Row]:
    # Without a plan cache, every call is planned. Pings are not part of the figure, so they are sent once a minute.
    servers = [
        lab.start(lambda: _evald(plan_cache_bytes=0, remote_ping_seconds=60)) for _ in range(2 * TWINS)
    ]
    crowded, empty = servers[:TWINS], servers[TWINS:]
    crowds = [lab.start(partial(_Plugin, "crowd", server.address)) for server in crowded]
    times = [json.loads(crowd.first_line) for crowd in crowds]
    early, late = (statistics.median(column) for column in zip(*times, strict=True))
    body = lab.body("planned", [workload.unary_request()])

    def calls(servers: list[Server]) -> Callable[[], float]:
        turns = itertools.cycle(servers)
        return lambda: lab.load(UNARY, body, "--expect", "1", server=next(turns)).calls

    pairs = paired(lab.rounds, calls(crowded), calls(empty))
    what = f"{INSTANCES} instances of {TYPES} types"
    return [
        pairs.row(f"calls that are planned, with {what} / with none", at_least(0.95), "calls/s"),
        Row(
            f"registering the last hundred of {what} / the third hundred",
            at_most(1.3),
            [after / before for before, after in times],
            f"{number(late)} : {number(early)} ms, median of each hundred",
        ),
    ]


def _evald(**settings: Any) -> Server:
    # Without logs of connecting and disconnecting plugins, which are not part of the figure.
    return processes.evald(log_level="error", **settings)


class _Plugin(Process):
    def __init__(self, *words: str) -> None:
        super().__init__([sys.executable, "-m", "benchmarks.remote_plugin", *words])


def _listening(*types: str) -> Server:
    return Server([sys.executable, "-m", "benchmarks.remote_plugin", "listen", *types])


def _request(*types: str, seconds: float = 0) -> evaluation_service_pb2.EvaluateUnaryRequest:
    """Return a request with the usual turn and one spec of each type. seconds: timeout of each; 0 for the default."""
    request = workload.unary_request()
    del request.request.evaluators[:]
    for name in types:
        spec = request.request.evaluators.add(type=name)
        if name == "contains":
            spec.config.update({"text": "booking"})
        if seconds:
            spec.timeout.FromNanoseconds(int(seconds * 1e9))
    return request


def _answered(lab: Lab, server: Server, *types: str) -> evaluation_service_pb2.EvaluateUnaryResponse:
    """Wait until all types are registered and pass. Return the answer. Raises BrokenRun."""
    failed = ""
    for _ in range(_PATIENCE * 10):
        try:
            (data,) = lab.answers(UNARY, [_request(*types)], server)
        except grpc.RpcError as problem:  # an unknown type: the plugin is not connected yet
            failed = str(problem)
        else:
            answer = evaluation_service_pb2.EvaluateUnaryResponse.FromString(data)
            if answer.summary.success:
                return answer
            failed = answer.summary.reason
        time.sleep(0.1)
    raise load.BrokenRun(f"{', '.join(types)}: {failed}")


def _hop(lab: Lab, plugin: Server) -> Server:
    """Start a bare server that sends the same bytes to the plugin as evald would."""
    from evald_server.app import server_options
    from evald_server.config import load_settings

    asked = plugin_pb2.EvaluateRequest(
        task={
            "task_id": "0123abcd-100",
            "type": _FAST,
            "version": "1.0.0",
            "context": workload.context(),
            "attempt": 1,
        }
    )
    # As many digits as evald's timeouts have.
    asked.task.timeout.FromNanoseconds(53_999_123_456)
    request = lab.directory / "hop.request"
    request.write_bytes(asked.SerializeToString())
    name = lab.payload("hop.payload", lab.answers(UNARY, [_request("contains")])[0])
    options = json.dumps(server_options(load_settings(environ={})))
    words = [plugin.address, f"/{SERVICE}/Evaluate", str(request), str(lab.directory / name), options]
    return Server([sys.executable, "-m", "benchmarks.hop", *words])
