"""A batch process: evaluates the server's chunks, one after the other.

It has only the built-in evaluators that never wait. Started by `pool`.
"""

import os
import pickle
import signal
import sys
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

from evald.threads import Threads
from evald_server import kernel
from evald_server.batch.chunk import Chunk, ProcessConfig
from evald_server.engine.combinators import combinators
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS
from evald_server.frames import read_frame, write_frame
from evald_server.logs import configure_logging
from evald_server.memory import prepare_for_calls

# The server process has priority, because it answers other calls. At 5, a process gets a third of the CPU time of one
# at 0; less would starve a batch on a busy machine.
_NICENESS: Final = 5

# When memory runs out, the kernel should kill a batch process rather than the server.
_OUT_OF_MEMORY_SCORE: Final = "500"

# Limit of the cache of compiled plans.
_PLAN_CACHE_BYTES: Final = 8 << 20


def _engine(config: ProcessConfig) -> Engine:
    """Return an engine with its own planner."""
    threads = Threads()
    limits = config.limits._replace(cache_bytes=min(config.limits.cache_bytes, _PLAN_CACHE_BYTES))
    planner = Planner(_registry(config, threads), limits, fail_open=config.fail_open)
    return Engine(planner, Contexts(config.max_messages), threads)


def _registry(config: ProcessConfig, threads: Threads) -> Registry:
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    for definition in combinators(threads):
        registry.register(definition, Origin.BUILT_IN)
    for name, spec in config.auto.items():
        if registry.get(name) is not None:
            registry.set_auto(name, spec)
    return registry


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Send the version, receive the config, report ready, and evaluate chunks until the server closes the pipe."""
    kernel.end_with_parent()
    _lower_priority()
    write_frame(answers, version("evald").encode())
    if (frame := read_frame(requests)) is None:
        return
    config: ProcessConfig = pickle.loads(frame)  # noqa: S301 - from our own parent
    configure_logging(config.log_format, config.log_level)
    engine = _engine(config)
    prepare_for_calls()
    write_frame(answers, b"")
    while (frame := read_frame(requests)) is not None:
        chunk: Chunk[object] = pickle.loads(frame)  # noqa: S301 - from our own parent
        write_frame(answers, pickle.dumps(chunk.evaluate(engine)))


def _lower_priority() -> None:
    """Ignore signals, because the server ends batch processes, and lower the process's priority."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)
    # The server runs the evaluations that must wait; their coroutines never start in this process.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)


def main() -> None:
    """Serve the parent process on the standard streams."""
    # Redirect stdout to stderr, so that output of libraries does not mix with the responses.
    # A server that is gone needs no answer, not even when the pipe is closed.
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, stdout)
