"""The engine alone: serialised contexts in, serialised summaries out, one plan, no gRPC.

Prints a line when ready; then, for every number of seconds on standard input, turns done and time taken.
Run by the benchmarks.

    python -m benchmarks.engine
"""

import itertools
import json
import sys
import time
from collections.abc import Callable

from evald.context import EvaluatorContext
from evald.threads import Threads
from evald.v1 import context_pb2, result_pb2
from evald_server.app import App
from evald_server.config import load_settings
from evald_server.engine.planner import Planner
from evald_server.engine.response import aggregated
from evald_server.engine.run import EvaluationRun

from . import workload


def evaluator() -> Callable[[bytes], bytes]:
    """A function from a context's bytes to its summary's."""
    threads = Threads()
    planner = Planner(App(load_settings(environ={})).registry)
    specs = tuple(spec.SerializeToString() for spec in workload.specs())

    def evaluate(data: bytes) -> bytes:
        plan = planner.plan(specs)
        view = EvaluatorContext(context_pb2.EvaluatorContext.FromString(data))
        run = EvaluationRun(plan, view, threads)
        assert run.finished, "an evaluator of this workload waits"
        return aggregated(run).SerializeToString()

    return evaluate


def main() -> None:
    """Serve requests for so many seconds of work."""
    evaluate = evaluator()
    contexts = [workload.context(number).SerializeToString() for number in range(workload.BATCH_ITEMS)]
    summary = result_pb2.AggregatedEvaluation.FromString(evaluate(contexts[0]))
    assert summary.success, summary
    assert len(summary.results) == len(workload.specs()), summary
    print("ready", flush=True)
    for line in sys.stdin:
        done = 0
        began = time.perf_counter()
        until = began + float(line)
        for data in itertools.cycle(contexts):
            evaluate(data)
            done += 1
            if time.perf_counter() >= until:
                break
        print(json.dumps([done, time.perf_counter() - began]), flush=True)


if __name__ == "__main__":
    main()
