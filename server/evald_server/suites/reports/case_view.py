"""Cases as a page shows them: long texts are cut, and control characters are made visible."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from evald.records import read_usage, read_verdict
from evald.result import Verdict
from evald.structs import duration_ms, struct_to_dict
from evald.v1 import evaluator_pb2, message_pb2, result_pb2, run_service_pb2, suite_service_pb2
from evald_server.pages.formats import Mark, count, evaluator_title, mark, money, number, score, seconds
from evald_server.untrusted import one_line, visible

from .report import is_metric, measured, reason_of

# Limits of what one case shows. The JSON results have everything.
_MOST_TEXT: Final = 4000
_LONG_TEXT: Final = 300
_MOST_REASON: Final = 2000
_MOST_NAME: Final = 200
_MOST_MESSAGES: Final = 60
_MOST_TRIALS: Final = 10
_MOST_TURNS: Final = 40
_MOST_RESULTS: Final = 50
_MOST_CHECKS: Final = 50
_MOST_CALLS: Final = 50
_MOST_WARNINGS: Final = 20

T = TypeVar("T")


class Text(NamedTuple):
    """A text and the number of its characters that are not shown."""

    shown: str
    cut: int = 0


class CallView(NamedTuple):
    """A tool call."""

    name: str
    arguments: Text


class MessageView(NamedTuple):
    """A message. name: of its author or tool. folded: shown for a long text until it is unfolded, or ""."""

    role: str
    name: str
    text: Text
    folded: str
    calls: list[CallView]
    calls_left_out: int


class ResultView(NamedTuple):
    """A row of the table of assertions or metrics. flags: pending, shadow, cached.

    facts: evaluator version, judge, instance, duration, tokens, cost. raw_request: of a judge. Reports omit both.
    """

    title: str
    mark: Mark
    flags: list[str]
    score: str
    value: str
    reason: Text
    checks: list[result_pb2.Check]
    checks_left_out: int
    evidence: Text
    facts: str = ""
    raw_request: Text = Text("")


class TurnView(NamedTuple):
    """A turn: its messages and the results beside them. facts: latency, tokens, cost, model."""

    number: int
    mark: Mark | None
    facts: str
    messages: list[MessageView]
    left_out: int
    assertions: list[ResultView]
    metrics: list[ResultView]
    results_left_out: int
    warnings: list[str]


class TrialView(NamedTuple):
    """A trial. before: messages before the first turn, the last ones if there are many. error: why the agent gave no answer."""

    number: int
    mark: Mark
    reason: Text
    error: str
    before: list[MessageView]
    before_left_out: int
    turns: list[TurnView]
    turns_left_out: int


class CaseView(NamedTuple):
    """A case.

    trials: None if the page has no room for them. counts: number and verdicts of several trials, as text.
    first_red: position of the first shown trial that failed or is in error, from 1; 1 if there is none.
    """

    case_id: str
    verdict: Verdict
    score: str
    reason: Text
    tags: list[str]
    place: str
    counts: str
    trials: list[TrialView] | None
    trials_left_out: int
    first_red: int


def case_view(case: suite_service_pb2.CaseResult, verdict: Verdict, place: str, *, whole: bool) -> CaseView:
    """Return the view of a case. place: FILE:LINE. whole: with its trials."""
    counts = ""
    judged = case.passed_count + case.failed_count + case.error_count
    total = max(len(case.trials), judged)
    if total > 1:
        parts = (
            (case.passed_count, "passed"),
            (case.failed_count, "failed"),
            (case.error_count, "inconclusive"),
            (total - judged, "skipped"),
        )
        verdicts = ", ".join(f"{amount} {word}" for amount, word in parts if amount)
        counts = f"{count(total, 'trial')}: {verdicts}"
    trials = most_of(case.trials, _MOST_TRIALS, lambda trial: is_red(trial.verdict))
    return CaseView(
        _name(case.case_id),
        verdict,
        score(case.score) if case.HasField("score") else "",
        _text(case.reason, _MOST_REASON),
        [_name(tag) for tag in case.tags[:20]],
        _name(place),
        counts,
        [_trial(trial) for trial in trials] if whole else None,
        len(case.trials) - len(trials) if whole else 0,
        next((index for index, one in enumerate(trials, 1) if is_red(one.verdict)), 1),
    )


def is_red(verdict: int) -> bool:
    """Return whether a verdict is FAILED or ERROR. An unknown verdict is an ERROR."""
    return read_verdict(verdict) in (Verdict.FAILED, Verdict.ERROR)


def most_of(items: Sequence[T], most: int, red: Callable[[T], bool]) -> list[T]:
    """Return at most `most` of the items, in their order. Red ones are left out last."""
    if len(items) <= most:
        return list(items)
    kept = sorted(range(len(items)), key=lambda place: not red(items[place]))[:most]
    return [items[place] for place in sorted(kept)]


def most_results(turn: run_service_pb2.RunTurn) -> list[result_pb2.EvaluationResult]:
    """Return the results of a turn that a page has room for."""
    return most_of(turn.evaluation.results, _MOST_RESULTS, lambda result: is_red(result.verdict))


def size(view: Any) -> int:
    """Return the approximate number of characters that a view adds to a page."""
    if isinstance(view, str):
        return len(view)
    if isinstance(view, tuple | list):
        # 60: the markup around each of them.
        return 60 + sum(size(part) for part in view)
    return 0


def title(name: str, type_name: str, label: str) -> str:
    """Return an evaluator's display name."""
    return _name(evaluator_title(name, type_name, label))


def _name(text: str) -> str:
    return one_line(text, _MOST_NAME)


def _text(text: str, limit: int = _MOST_TEXT) -> Text:
    return Text(visible(text[:limit]), max(len(text) - limit, 0))


def _trial(trial: suite_service_pb2.TrialResult) -> TrialView:
    turns = most_of(
        trial.turns,
        _MOST_TURNS,
        lambda turn: turn.HasField("evaluation") and is_red(turn.evaluation.verdict),
    )
    first = trial.turns[0].first_message if turns else len(trial.messages)
    error = f"{trial.error.code}: {trial.error.message}" if trial.HasField("error") else ""
    views = [_turn(turn, trial.messages) for turn in turns]
    after = turns[-1].first_message + turns[-1].message_count if turns else first
    if not trial.turns and trial.messages:
        first = 0  # no turn was evaluated: show the messages anyway
        views = [_turn(run_service_pb2.RunTurn(turn=1, message_count=len(trial.messages)), trial.messages)]
    elif len(trial.messages) > after and not len(trial.turns) > _MOST_TURNS:
        rest = run_service_pb2.RunTurn(
            turn=len(turns) + 1, first_message=after, message_count=len(trial.messages) - after
        )
        views.append(_turn(rest, trial.messages))
    return TrialView(
        trial.trial,
        mark(trial.verdict),
        _text(trial.reason, _MOST_REASON),
        _text(error, _MOST_REASON).shown,
        [message_view(message) for message in trial.messages[max(0, first - _MOST_MESSAGES) : first]],
        max(0, first - _MOST_MESSAGES),
        views,
        len(trial.turns) - len(turns),
    )


def _turn(turn: run_service_pb2.RunTurn, messages: Sequence[message_pb2.ChatMessage]) -> TurnView:
    end = turn.first_message + turn.message_count
    start = max(turn.first_message, end - _MOST_MESSAGES)
    evaluated = turn.HasField("evaluation")
    found = most_results(turn)
    return TurnView(
        turn.turn,
        mark(turn.evaluation.verdict) if evaluated else None,
        turn_facts(turn),
        [message_view(message) for message in messages[start:end]],
        start - turn.first_message,
        [result_view(result) for result in found if not is_metric(result)],
        [result_view(result) for result in found if is_metric(result)],
        len(turn.evaluation.results) - len(found),
        warnings_of(turn.evaluation),
    )


def warnings_of(evaluation: result_pb2.AggregatedEvaluation) -> list[str]:
    """Return the warnings of an evaluation. If there are too many, a last line has the number of the others."""
    found = evaluation.warnings
    left_out = len(found) - _MOST_WARNINGS
    more = [count(left_out, "more warning")] if left_out > 0 else []
    return [_text(warning, _MOST_REASON).shown for warning in found[:_MOST_WARNINGS]] + more


def turn_facts(turn: run_service_pb2.RunTurn) -> str:
    """Return latency, tokens, cost and model of a turn, as far as they are known."""
    return " · ".join(_facts(turn))


def _facts(turn: run_service_pb2.RunTurn) -> Iterable[str]:
    if turn.HasField("latency"):
        yield seconds(duration_ms(turn.latency) / 1000)
    total = read_usage(turn.token_usage).total
    if total is not None:
        yield count(total, "token")
    if turn.HasField("cost"):
        yield money(turn.cost)
    if turn.model:
        yield _name(turn.model)


def message_view(pb: message_pb2.ChatMessage, limit: int = _MOST_TEXT) -> MessageView:
    """Return the view of a message. limit: most characters shown of each text."""
    text = message_text(pb)
    calls = [
        CallView(_name(call.function.name), _text(call.function.arguments, limit))
        for call in pb.tool_calls[:_MOST_CALLS]
    ]
    # Messages of users and agents stay unfolded, because readers look for them.
    long = len(text) > _LONG_TEXT and pb.role not in ("user", "assistant")
    folded = f"{one_line(text, 60)} ({count(len(text), 'character')})" if long else ""
    left_out = len(pb.tool_calls) - len(calls)
    return MessageView(_name(pb.role), _name(pb.name), _text(text, limit), folded, calls, left_out)


def message_text(pb: message_pb2.ChatMessage) -> str:
    """Return the text of a message as it was sent, without its tool calls."""
    texts = [pb.text] if pb.HasField("text") else []
    for block in pb.blocks.items:
        if block.HasField("text"):
            texts.append(block.text)
        else:
            texts.append(
                f"[{block.type or 'block'}] {json.dumps(struct_to_dict(block.fields), ensure_ascii=False)}"
            )
    if pb.HasField("refusal"):
        texts.append(f"[refusal] {pb.refusal}")
    return "\n".join(texts)


def result_view(result: result_pb2.EvaluationResult, *, whole: bool = False) -> ResultView:
    """Return the row of a result. whole: with facts and raw request."""
    data = struct_to_dict(result.metadata) if result.HasField("metadata") else {}
    flags = {
        "pending": result.pending,
        "shadow": result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW,
        "cached": result.cached,
    }
    checks = most_of(result.checks, _MOST_CHECKS, lambda check: not check.met)
    return ResultView(
        title(result.name, result.type, result.label),
        mark(result.verdict),
        [flag for flag, is_set in flags.items() if is_set],
        score(result.score) if result.HasField("score") else "",
        number(measured(result)) or "n/a",
        _text(reason_of(result), _MOST_REASON),
        [
            result_pb2.Check(
                text=_text(check.text, 500).shown, met=check.met, evidence=_text(check.evidence, 500).shown
            )
            for check in checks
        ],
        len(result.checks) - len(checks),
        _json(data),
        " · ".join(_result_facts(result)) if whole else "",
        _json(struct_to_dict(result.raw_request)) if whole else Text(""),
    )


def _json(data: dict[str, Any]) -> Text:
    return _text(json.dumps(data, ensure_ascii=False, indent=2)) if data else Text("")


def _result_facts(result: result_pb2.EvaluationResult) -> Iterable[str]:
    if result.version:
        yield f"{_name(result.type)} {_name(result.version)}"
    if result.provenance.judge_models:
        yield _name(", ".join(result.provenance.judge_models))
        card = result.provenance.calibration_card
        yield f"calibration {_name(card)}" if card else "not calibrated"
    if result.instance_id:
        yield f"instance {_name(result.instance_id)}"
    if result.HasField("duration"):
        yield seconds(duration_ms(result.duration) / 1000)
    total = read_usage(result.token_usage).total
    if total:
        yield count(total, "token")
    if result.HasField("cost"):
        yield money(result.cost)
