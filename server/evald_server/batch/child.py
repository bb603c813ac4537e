"""What a batch process does: it evaluates the messages that the server hands it, one after the other.

It has the built-in evaluators that wait for nothing, and no others. Nothing here may import grpc.
"""

import logging
import marshal
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final

from google.protobuf.message import DecodeError

from evald.threads import Threads
from evald_server import kernel, wire_pb2
from evald_server.engine.combinators import combinators
from evald_server.engine.contexts import Contexts, InvalidContext
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from evald_server.evaluators import BUILT_INS
from evald_server.frames import read_frame, write_frame
from evald_server.logs import configure_logging
from evald_server.memory import prepare_for_calls

from .part import MAX_BYTES, Part
from .recorder import Heard, Recorder
from .rules import CLOSE, OPEN, Report, Rules, Work
from .totals import Sums, Totals

# The server's own thread, which calls beside the batch wait for, comes first. At 5, a process gets a third of what
# one at 0 gets: less would leave a batch behind on a machine that is busy otherwise.
_NICENESS: Final = 5

# Items between two looks whether somebody else wants the processor, 0.4 ms: the kernel by itself would let the
# server's thread wait for 3 ms. Giving way costs a place in the queue: at 4 items, a batch beside another busy
# process is slower than it would be in the server.
_YIELD_EVERY: Final = 16

# When memory runs out, the kernel is to end a batch process, which the server can do without.
_OUT_OF_MEMORY_SCORE: Final = "500"

# Not on Windows, which knows no niceness either.
_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)

_log = logging.getLogger("evald.batch")

_NO_SUMS: Final = Sums((), ())
_NOTHING_HEARD: Final = Heard(())

# How long one item may take here, where no other caller waits. Longer ones are left to the server, which
# cuts them at their deadline.
_SLICE_NANOS: Final = 1_000_000_000


class Evaluating:
    """The works that are open, and the evaluation of messages under them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        threads = Threads()
        planner = Planner(_registry(rules, threads), rules.limits, fail_open=rules.fail_open)
        self._engine = Engine(planner, Contexts(rules.max_messages), threads)
        self._open: dict[int, Plan] = {}

    def open(self, number: int, work: Work) -> None:
        """Make the plan of a work."""
        try:
            plan = self._engine.planner.plan(tuple(work.specs), work.options)
        except InvalidPlan:
            return  # it names what only the server has
        if list(plan.template.specs) != list(work.announced):
            _log.warning("a plan is not the server's; its batches are evaluated there")
            return
        self._open[number] = plan

    def close(self, number: int) -> None:
        """Forget a work."""
        self._open.pop(number, None)

    def evaluate(self, number: int, data: bytes, start: int, brief: bool) -> bytes:
        """A packed Report on a message."""
        items = wire_pb2.EvaluateBatchRequest.FromString(data).items
        opened = self._open.get(number)
        if opened is None:
            left = list(range(start, len(items)))
            return Report(len(items), left, (), b"", (), _NO_SUMS, _NOTHING_HEARD).packed()
        return self._report(opened, items, start, brief).packed()

    def _report(self, plan: Plan, items: Sequence[bytes], start: int, brief: bool) -> Report:
        seconds: list[tuple[int, float]] = []
        left: list[int] = []
        recorder = Recorder()

        def observe(run: EvaluationRun) -> None:
            seconds.append((int(run.aggregate.verdict), run.nanos * 1e-9))
            recorder.add(run)

        part = Part(self._engine, observe, brief=brief, slice_nanos=_SLICE_NANOS)
        end = start
        for data in items[start:]:
            if not _evaluated(part, data, plan):
                left.append(end)
            end += 1
            if not end % _YIELD_EVERY:
                _yield()
            if part.size >= MAX_BYTES:
                break
        totals = part.totals.get(id(plan)) or Totals(plan)
        return Report(
            end,
            left,
            part.verdicts,
            b"".join(part.answers),
            seconds,
            totals.sums(),
            recorder.take(),
        )


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer the server's messages until it closes the pipe, or is gone."""
    kernel.end_with_parent()
    frame = read_frame(requests)
    if frame is None:
        return
    rules = Rules.unpacked(frame)
    configure_logging(*rules.log)
    _stand_back()
    evaluating = Evaluating(rules)
    prepare_for_calls()
    with suppress(BrokenPipeError):
        write_frame(answers, version("evald").encode())
        while (frame := read_frame(requests)) is not None:
            kind, number, detail = marshal.loads(frame)  # noqa: S302 - from our own parent
            if kind == OPEN:
                evaluating.open(number, Work(*detail))
            elif kind == CLOSE:
                evaluating.close(number)
            else:
                data = read_frame(requests)
                if data is None:
                    return
                write_frame(answers, evaluating.evaluate(number, data, *detail))


def _stand_back() -> None:
    """Leave signals to the server, which decides when a batch process ends, and the machine to it as well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)
    # What turns out to wait is left to the server: its coroutines are never begun.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)


def _registry(rules: Rules, threads: Threads) -> Registry:
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    for definition in combinators(threads):
        registry.register(definition, Origin.BUILT_IN)
    for name, config in rules.auto.items():
        if registry.get(name) is not None:
            registry.set_auto(name, config)
    return registry


def _evaluated(part: Part, data: bytes, plan: Plan) -> bool:
    """Whether the item could be evaluated here. The server does what is refused, asks for something of its own,
    or waits."""
    try:
        item = wire_pb2.BatchItem.FromString(data)
        if item.evaluators or item.context.HasField("scenario"):
            return False
        waiting = part.evaluate(item, plan)
    except (DecodeError, InvalidContext):
        return False
    if waiting is None:
        return True
    waiting.abandon()
    return False
