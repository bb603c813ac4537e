"""Suite cases with recorded answers: each trial is a conversation, and its turns are evaluated."""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final, TypeAlias

from evald.blocks import UnreadableContent
from evald.chat import Conversation
from evald.context import EvaluatorContext
from evald.result import Kind
from evald.v1 import context_pb2, evaluation_service_pb2, message_pb2, result_pb2, suite_service_pb2
from evald_server import wire_pb2
from evald_server.engine.contexts import InvalidContext, check_invocation
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan, Plan, check_kinds
from evald_server.engine.response import fill_aggregated
from evald_server.engine.run import SLICE_NANOS, EvaluationRun
from evald_server.logs import log_incident
from evald_server.suites.verdicts import decide_case, decide_trial

from .invocations import turn_of

_log = logging.getLogger("evald.suites")

MAX_CASE_BYTES: Final = 2 << 20
"""The largest case result in bytes that keeps its conversations: gRPC clients accept 4 MiB by default."""

MAX_TURNS: Final = 1 << 31
"""A number of turns per trial that no message can reach: no limit."""

# Recorded turns of a trial that run before the event loop may run other tasks; later turns run one by one.
_TURNS_AT_ONCE: Final = 8
# Limit of warnings in a case's result.
_MOST_WARNINGS: Final = 20


@dataclass(frozen=True)
class CaseSetup:
    """The data that the cases of a suite run share.

    opened: the SuiteOpen message as it was sent. specs, options: its evaluators and options, serialised.
    on_turn: called with the evaluation of every turn. slice_nanos: how long the evaluation of a turn may run before it
    must wait, in nanoseconds. turns_at_once: how many turns `play` plays.
    """

    run_id: str
    opened: suite_service_pb2.SuiteOpen
    specs: tuple[bytes, ...]
    options: bytes
    engine: Engine
    on_turn: Callable[[EvaluationRun], None]
    slice_nanos: int = SLICE_NANOS
    turns_at_once: int = _TURNS_AT_ONCE

    def trials(self, case: wire_pb2.SuiteCase) -> int:
        """Return how many trials a case has."""
        return len(case.recorded_trials) or case.trials or self.opened.trials or 1

    def min_passed(self, case: wire_pb2.SuiteCase) -> int:
        """Return how many of a case's trials must pass; 0 for all."""
        return case.min_passed or self.opened.min_passed

    def specs_of(self, case: wire_pb2.SuiteCase, turn: int) -> tuple[bytes, ...]:
        """Return the serialised evaluator specs of a turn; empty when it is not evaluated. turn: index from 0."""
        own = case.turns[turn].evaluators
        if own or turn + 1 < len(case.turns):
            return tuple(own)
        return tuple(case.evaluators) or self.specs

    def options_of(self, case: wire_pb2.SuiteCase) -> bytes:
        """Return the serialised options for the turns of a case."""
        return case.options if case.HasField("options") else self.options

    def conditions(self, case: wire_pb2.SuiteCase) -> str:
        """Return `CaseResult.conditions_sha256`: a digest of the case's input and of how its verdict is decided."""
        asked = wire_pb2.SuiteCase()
        asked.CopyFrom(case)
        asked.trials, asked.min_passed = self.trials(case), self.min_passed(case)
        del asked.recorded_trials[:], asked.evaluators[:], asked.tags[:]
        for name in ("case_id", "options", "weight"):
            asked.ClearField(name)
        for turn in asked.turns:
            del turn.evaluators[:]
        policy = _policy(case.options) if case.HasField("options") else self._shared_policy
        weights = [self._weights(case, turn).encode() for turn in range(len(case.turns))]
        # Each text ends with a zero byte, which no text contains, so that two cases cannot give the same bytes.
        digest = hashlib.sha256(b"\0".join([policy, *weights, b""]))
        digest.update(asked.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def _weights(self, case: wire_pb2.SuiteCase, turn: int) -> str:
        """Return the name, weight and flags of a turn's enforced assertions as text."""
        try:
            plan = self.plan(case, turn)
        except InvalidPlan:
            plan = None  # the case ends in error
        return "[]" if plan is None else _weights_of(plan)

    @cached_property
    def _shared_policy(self) -> bytes:
        return _policy(self.options)

    def plan(self, case: wire_pb2.SuiteCase, turn: int) -> Plan | None:
        """Return the plan of a turn; None when it is not evaluated. Raises InvalidPlan."""
        specs, options = self.specs_of(case, turn), self.options_of(case)
        plan = self.engine.planner.plan(specs, options) if specs else None
        if plan is not None and specs == self.specs:
            check_kinds(self._began, plan)
        return plan

    @cached_property
    def _began(self) -> Plan:
        return self.engine.planner.plan(self.specs, self.options)


@lru_cache(maxsize=16)  # the cases of a suite share their plan
def _weights_of(plan: Plan) -> str:
    return repr(
        [
            (one.name, one.weight, one.required, one.fail_open, one.final_only)
            for one in plan.evaluators
            if one.enforced and one.definition.kind is Kind.ASSERTION
        ]
    )


def _policy(data: bytes) -> bytes:
    """Return the part of serialised options that decides how results become a verdict."""
    options = evaluation_service_pb2.EvaluateOptions.FromString(data)
    return repr(
        (
            options.aggregation,
            options.threshold if options.HasField("threshold") else None,
            options.fail_fast,
            options.skip_auto_evaluators,
        )
    ).encode()


Answers: TypeAlias = Sequence[context_pb2.Invocation]

CaseRow: TypeAlias = tuple[str, int, bytes, bytes]
"""The stored row of a case: id, verdict, the serialised CaseResult without trials, and the same with trials."""


class RecordedCase:
    """One case of a suite. When all `trials` have ended, call `decide`, then `row`.

    result: the case's result.
    """

    def __init__(self, case: wire_pb2.SuiteCase, setup: CaseSetup, size: int) -> None:
        """size: bytes of the serialised case."""
        self._case = case
        self._setup = setup
        # Most cases are so small that their conversations fit into the result without a measurement.
        self._measured = size * setup.trials(case) > MAX_CASE_BYTES // 2 or not case.recorded_trials
        self.result = suite_service_pb2.CaseResult(
            case_id=case.case_id,
            weight=case.weight if case.HasField("weight") else 1.0,
            tags=case.tags,
            metadata=case.metadata if case.HasField("metadata") else None,
            conditions_sha256=setup.conditions(case),
        )

    def trials(self) -> Iterator["RecordedTrial"]:
        """Yield the trials, which may run concurrently."""
        for result, answers in self._begun():
            yield RecordedTrial(self._case, self._setup, result, answers)

    def _begun(self) -> Iterator[tuple[suite_service_pb2.TrialResult, Answers | None]]:
        """Yield each trial's result, still to be filled, and its recorded answers, if any."""
        recorded = self._case.recorded_trials
        for number in range(1, self._setup.trials(self._case) + 1):
            result = self.result.trials.add(trial=number)
            if recorded and recorded[number - 1].HasField("error"):
                result.error.CopyFrom(recorded[number - 1].error)
            yield result, recorded[number - 1].answers if recorded else None

    def decide(self) -> None:
        """Set the case's verdict from its trials."""
        if self._measured:
            room = MAX_CASE_BYTES
            for trial in self.result.trials:
                room -= sum(message.ByteSize() + 8 for message in trial.messages)
                if room < 0:
                    del trial.messages[:]
        decide_case(self.result, self._setup.min_passed(self._case))
        evaluations = (turn.evaluation for trial in self.result.trials for turn in trial.turns)
        warnings = dict.fromkeys(warning for found in evaluations for warning in found.warnings)
        self.result.warnings[:] = islice(warnings, _MOST_WARNINGS)

    def row(self) -> CaseRow:
        """Return the stored row of a decided case. Removes the trials from `result`."""
        result = self.result
        whole = result.SerializeToString()
        del result.trials[:]
        return result.case_id, result.verdict, result.SerializeToString(), whole


class RecordedTrial:
    """One conversation and its evaluation.

    waiting: the evaluation of a turn that must wait for something.
    """

    def __init__(
        self,
        case: wire_pb2.SuiteCase,
        setup: CaseSetup,
        result: suite_service_pb2.TrialResult,
        answers: Answers | None,
    ) -> None:
        """result: filled in place. answers: one for each turn; None when the agent must be called."""
        self.waiting: EvaluationRun | None = None
        self._case = case
        self._setup = setup
        self._result = result
        self._answers = answers
        self._index = 0  # of the turn
        self._latency: int | None = 0  # nanoseconds of all recorded answers; None when one is unknown
        self._ended = False
        self._pb = context_pb2.EvaluatorContext(
            attempt=result.trial, metadata=case.metadata if case.HasField("metadata") else None
        )
        self._pb.correlation.run_id = setup.run_id
        self._conversation = Conversation(self._pb.messages) if len(case.turns) > 1 else None

    def play(self) -> bool:
        """Play recorded answers for up to `turns_at_once` turns, or until an evaluation must wait.

        Returns whether the trial has ended.
        """
        if self._result.HasField("error"):
            self._end()
            return True
        try:
            self._extend(self._case.messages, "messages")
            while not self._ended and self.waiting is None and self._answers is not None:
                if self._index == self._setup.turns_at_once:
                    break
                self._take(self._answers[self._index])
        except Exception as problem:  # noqa: BLE001 - a fault in one case must not end others
            self._break(problem)
        return self._ended

    def _take(self, answer: context_pb2.Invocation) -> None:
        """Add a recorded turn to the conversation and evaluate it."""
        first, path = (
            len(self._pb.messages),
            f"recorded_trials[{self._result.trial - 1}].answers[{self._index}]",
        )
        self._extend(self._case.turns[self._index].input, f"turns[{self._index}].input")
        check_invocation(answer, path)
        self._setup.engine.contexts.complete_messages(answer, path)
        if self._case.turns[self._index].input and any(one.role == "user" for one in answer.messages):
            self._result.error.code = "TRANSCRIPT_MISMATCH"
            self._result.error.message = (
                f"{path}.messages: got a message of the user in the answer of a turn that has an input; wanted the "
                "agent's messages alone, which answer that input"
            )
            self._end()
            return
        self._extend(answer.messages, f"{path}.messages")
        if self._latency is not None:
            known = answer.HasField("latency")
            self._latency = self._latency + answer.latency.ToNanoseconds() if known else None
        if self._latency is None:
            self._pb.ClearField("run_duration")
        else:
            self._pb.run_duration.FromNanoseconds(self._latency)
        self._evaluate(answer, first)

    def _evaluate(self, last: context_pb2.Invocation, first: int) -> None:
        """Begin to evaluate the last turn of the conversation."""
        pb, turn = self._pb, self._case.turns[self._index]
        self._setup.engine.contexts.begin_turn(pb, first, last)
        # A whole conversation is judged by its last turn.
        said = pb.last_invocation.messages
        del said[: max((index + 1 for index, one in enumerate(said) if one.role == "user"), default=0)]
        self._result.turns.append(turn_of(last, self._index + 1, first, len(pb.messages) - first))
        plan = self._setup.plan(self._case, self._index)
        if plan is None:
            self._next()
            return
        pb.is_final = self._index + 1 == len(self._case.turns)
        waiting = [
            one.name for one in plan.evaluators[: len(turn.evaluators)] if one.counts and one.awaits_final
        ]
        if waiting and not pb.is_final:
            self._refuse(
                f"{', '.join(waiting)[:200]} waits for the last turn, and so would never run on this one"
            )
            self._next()
            return
        pb.turn = self._index + 1
        if turn.HasField("expected"):
            pb.expected.CopyFrom(turn.expected)
        else:
            pb.ClearField("expected")
        ctx = EvaluatorContext(pb, self._conversation)
        run = self._setup.engine.start(plan, ctx, self._setup.slice_nanos)
        if run.finished:
            self._add(run)
        else:
            self.waiting = run

    def _add(self, run: EvaluationRun) -> None:
        turn = self._result.turns[-1]
        turn.is_final = run.ctx.is_final
        fill_aggregated(turn.evaluation, run)
        self._setup.on_turn(run)
        self._next()

    def _next(self) -> None:
        self._index += 1
        if self._index == len(self._case.turns):
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._result.messages.extend(self._pb.messages)
        decide_trial(self._result)

    def _break(self, problem: Exception) -> None:
        """End the trial in error, never as passed or failed."""
        if isinstance(problem, InvalidContext | InvalidPlan | UnreadableContent):
            self._refuse(str(problem))
        else:
            what = f"a case of suite run {self._setup.run_id} raised an exception"
            self._result.error.code = "INTERNAL"
            self._result.error.message = f"Internal error {log_incident(_log, what, problem).note}"
        self._end()

    def _refuse(self, problem: str) -> None:
        """Set the turn's verdict to error because it cannot be evaluated."""
        if len(self._result.turns) <= self._index:
            self._result.turns.add(turn=self._index + 1, first_message=len(self._pb.messages))
        evaluation = self._result.turns[-1].evaluation
        evaluation.verdict = result_pb2.VERDICT_ERROR
        evaluation.reason = f"The turn cannot be evaluated: {problem}"
        evaluation.error_count = 1

    def _extend(self, messages: Sequence[message_pb2.ChatMessage], path: str) -> None:
        self._setup.engine.contexts.extend(self._pb, messages, "", path)
