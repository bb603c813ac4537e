"""What was wrong with a case, as lines of text: the answer of each red turn, and every red result with its reason."""

from collections.abc import Iterator, Sequence
from typing import Final

from evald.end_marks import end_mark_index
from evald.records import read_verdict
from evald.v1 import evaluator_pb2, message_pb2, run_service_pb2, suite_service_pb2
from evald_server.pages.formats import count
from evald_server.untrusted import one_line

from .case_view import is_red, message_text
from .report import reason_of

_MOST_ANSWER: Final = 200
_MOST_NAME: Final = 100
_MOST_LINES: Final = 200


def failure_lines(case: suite_service_pb2.CaseResult, most_reason: int = 1000) -> list[str]:
    """Return the lines of a case that did not pass; for a case without red trials, its reason.

    Each is one printable line. Those of an answer with several lines have a mark, so that it cannot imitate others, or
    a command for a CI system.
    """
    lines = [line for trial in case.trials for line in _of_trial(trial, case, most_reason)]
    return _limited(lines or [one_line(case.reason, most_reason)])


def answer_lines(case: suite_service_pb2.CaseResult) -> list[str]:
    """Return the answers of the evaluated turns of a case."""
    return _limited(
        [
            line
            for trial in case.trials
            for turn in trial.turns
            if turn.HasField("evaluation")
            for line in _answer(trial, turn, _place(case, trial, turn))
        ]
    )


def _limited(lines: list[str]) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[:_MOST_LINES], f"and {count(len(lines) - _MOST_LINES, 'more line')}"]


def _of_trial(
    trial: suite_service_pb2.TrialResult, case: suite_service_pb2.CaseResult, most: int
) -> Iterator[str]:
    for turn in trial.turns:
        evaluation = turn.evaluation
        red = [result for result in evaluation.results if is_red(result.verdict)]
        broken = turn.HasField("evaluation") and is_red(evaluation.verdict)
        if not red and not broken:
            continue
        where = _place(case, trial, turn)
        yield from _answer(trial, turn, where)
        # Only where no single result says why, as below a threshold.
        if broken and not any(evaluation.reason.endswith(result.reason) for result in red):
            yield where + one_line(f"{read_verdict(evaluation.verdict).name}: {evaluation.reason}", most)
        for result in red:
            shadow = " (shadow)" if result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW else ""
            said = f"{read_verdict(result.verdict).name}{shadow}: {reason_of(result)}"
            yield f"{where}{one_line(result.name, _MOST_NAME)}: {one_line(said, most)}"
    if trial.HasField("error"):
        where = f"trial {trial.trial}: " if len(case.trials) > 1 else ""
        yield where + one_line(f"ERROR {trial.error.code}: {trial.error.message}", most)


def _place(
    case: suite_service_pb2.CaseResult,
    trial: suite_service_pb2.TrialResult,
    turn: run_service_pb2.RunTurn,
) -> str:
    """Return the place of a turn, such as "trial 2, turn 1: "; "" if there is one trial with one turn."""
    places = [f"trial {trial.trial}"] if len(case.trials) > 1 else []
    places += [f"turn {turn.turn}"] if len(trial.turns) > 1 else []
    return f"{', '.join(places)}: " if places else ""


def _answer(trial: suite_service_pb2.TrialResult, turn: run_service_pb2.RunTurn, where: str) -> Iterator[str]:
    messages = trial.messages[turn.first_message : turn.first_message + turn.message_count]
    if turn.message_count and not messages:
        yield f"{where}answer: not kept, because the conversation is too long"
        return
    text, why_none = _said(messages)
    if not text:
        yield f"{where}answer: {why_none}"
        return
    cut = len(text) - _MOST_ANSWER
    more = f"… ({count(cut, 'more character')})" if cut > 0 else ""
    lines = [line for line in text[:_MOST_ANSWER].replace("\r\n", "\n").split("\n") if line.strip()]
    if len(lines) == 1:
        yield f"{where}answer: {one_line(lines[0])}{more}"
        return
    yield f"{where}answer:"
    yield from (f"  | {one_line(line)}" for line in lines[:-1])
    yield f"  | {one_line(lines[-1])}{more}"


def _said(messages: Sequence[message_pb2.ChatMessage]) -> tuple[str, str]:
    """Return the agent's last text after the turn's last user message, and if there is none, why."""
    messages = messages[: end_mark_index(messages)]  # type: ignore[arg-type]  # a slice is a list
    start = max((at for at, message in enumerate(messages, 1) if message.role == "user"), default=0)
    said = [message for message in messages[start:] if message.role == "assistant"]
    text = next((text for message in reversed(said) if (text := message_text(message)).strip()), "")
    if text:
        return text, ""
    calls = [call.function for message in said for call in message.tool_calls]
    if calls:
        shown = ", ".join(f"{call.name}({call.arguments})" for call in calls)
        return "", f"no text, only {count(len(calls), 'tool call')}: {one_line(shown, _MOST_ANSWER)}"
    return "", "an empty text" if said else "none: there is no message of the agent"
