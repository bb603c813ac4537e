"""Conversion of evaluated conversations to a suite run with cases, for the reports of suites."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evald.fields import duration_to_pb
from evald.structs import fill_struct
from evald.v1 import result_pb2, suite_service_pb2
from evald_server.suites.id_set import IdSet
from evald_server.suites.message_file import MessageFile
from evald_server.suites.recorded_turns import turn_bounds
from evald_server.suites.reports.report import SuiteReport
from evald_server.suites.verdicts import SuiteTotals, decide_case, decide_trial

from . import conversations

if TYPE_CHECKING:
    from evald import Evaluation, EvaluatorResult

    from .batch_eval import EvaluatedConversation

_UNSENT: Final = "NOT_EVALUATED"


class EvaluatedCases:
    """The conversations of a command as the cases of one suite run. Kept in a file, not in memory."""

    def __init__(self, files: Sequence[str], *, every_turn: bool) -> None:
        names = ["stdin" if file == "-" else Path(file).stem for file in files]
        self._run = suite_service_pb2.SuiteRun(suite=", ".join(names), target="recorded", trials=1)
        self._run.status = suite_service_pb2.SUITE_RUN_STATUS_COMPLETED
        self._run.create_time.FromDatetime(datetime.now(UTC))
        self._every_turn = every_turn
        self._totals = SuiteTotals()
        self._ids = IdSet()
        self._count = 0
        self._stored = MessageFile(suite_service_pb2.CaseResult)

    def add(self, evaluated: "EvaluatedConversation") -> None:
        """Add a conversation. A duplicate id gets the conversation's number appended: ids are unique."""
        case = case_of(evaluated, every_turn=self._every_turn)
        self._count += 1
        if not self._ids.add(case.case_id):
            case.case_id += f" (conversation {self._count})"
        self._totals.add(case)
        self._stored.add(case.SerializeToString())

    def report(self) -> SuiteReport:
        """Return the report of all conversations so far."""
        self._run.complete_time.FromDatetime(datetime.now(UTC))
        self._totals.fill(self._run)
        return SuiteReport(self._run, self._stored)


def case_of(evaluated: "EvaluatedConversation", *, every_turn: bool) -> suite_service_pb2.CaseResult:
    """Return a conversation as a case with one trial. every_turn: all turns were evaluated, not only the last."""
    conversation = evaluated.conversation
    case = suite_service_pb2.CaseResult(case_id=conversation.id, weight=1)
    trial = case.trials.add(trial=1)
    context = conversations.last_turn(conversation).to_proto()
    trial.messages.extend(context.messages)
    bounds = turn_bounds(conversation.messages)
    contexts: Iterable[Any] = [context]
    if every_turn:
        contexts = [turn.to_proto() for turn in conversations.every_turn(conversation)]
    else:
        bounds = bounds[-1:]
    for (start, end), sent, outcome in zip(bounds, contexts, evaluated.turns, strict=False):
        turn = trial.turns.add(turn=sent.turn or len(trial.turns) + 1)
        first = min(start, len(trial.messages))
        turn.first_message, turn.message_count = first, max(min(end, len(trial.messages)) - first, 0)
        invocation = sent.last_invocation
        for name in ("latency", "token_usage", "cost"):
            if invocation.HasField(name):
                getattr(turn, name).CopyFrom(getattr(invocation, name))
        turn.model = invocation.model
        if not isinstance(outcome, str):
            _fill_evaluation(outcome, turn.evaluation)
        elif not trial.HasField("error"):
            trial.error.code, trial.error.message = _UNSENT, outcome
    decide_trial(trial)
    decide_case(case)
    return case


def _fill_evaluation(evaluation: "Evaluation", pb: result_pb2.AggregatedEvaluation) -> None:
    """Fill in what reports show."""
    pb.verdict, pb.reason = evaluation.verdict, evaluation.reason  # type: ignore[assignment]
    if evaluation.score is not None:
        pb.score = evaluation.score
    pb.passed_count, pb.failed_count = evaluation.passed_count, evaluation.failed_count
    pb.metrics.update(evaluation.metrics)
    pb.warnings.extend(evaluation.warnings)
    if evaluation.duration_ms is not None:
        duration_to_pb(evaluation.duration_ms / 1000, pb.duration)
    for name, tokens in evaluation.token_usage._asdict().items():
        if tokens is not None:
            setattr(pb.token_usage, name, tokens)
    if evaluation.cost_usd is not None:
        pb.cost.currency_code, pb.cost.amount = "USD", evaluation.cost_usd
    for result in evaluation.results:
        _fill_result(result, pb.results.add())


def _fill_result(result: "EvaluatorResult", pb: result_pb2.EvaluationResult) -> None:
    for name in ("name", "type", "label", "reason", "cached", "pending"):
        setattr(pb, name, getattr(result, name))
    pb.kind, pb.verdict = int(result.kind), int(result.verdict)  # type: ignore[assignment]
    pb.enforcement = 2 if result.shadow else 1  # type: ignore[assignment]
    for name in ("score", "value"):
        if (value := getattr(result, name)) is not None:
            setattr(pb, name, value)
    if result.metadata:
        fill_struct(dict(result.metadata), pb.metadata, "metadata")
    for check in result.checks:
        pb.checks.add(text=check.text, met=check.met, evidence=check.evidence)
    if result.error is not None:
        pb.error.code, pb.error.message = result.error.code, result.error.message
