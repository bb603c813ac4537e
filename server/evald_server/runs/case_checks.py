"""Checks of a suite case before it runs."""

from typing import Final, NamedTuple

from evald.fields import WEIGHTS, is_weight
from evald.v1 import suite_service_pb2
from evald_server import wire_pb2

from .recorded import CaseSetup

_MAX_CASE_ID: Final = 256  # bytes: PostgreSQL cannot index much longer ones
_MAX_TRIALS: Final = 100


class CaseProblem(NamedTuple):
    """A field of a case and its problem."""

    field: str
    message: str


def case_problem(case: wire_pb2.SuiteCase, setup: CaseSetup, *, asks_agent: bool) -> CaseProblem | None:
    """Return the first problem of a case, without a check of its evaluators; None if it has none.

    asks_agent: whether the suite run has an agent.
    """
    size = len(case.case_id.encode())
    if not 0 < size <= _MAX_CASE_ID or not case.case_id.isprintable():
        return CaseProblem(
            "case_id",
            f"got {size} bytes, wanted 1 to {_MAX_CASE_ID}, all of them printable characters",
        )
    if not case.turns:
        return CaseProblem("turns", "empty, wanted at least one")
    for found in number_problems(case):
        return found
    if not is_weight(case.weight):
        return CaseProblem("weight", f"got {case.weight}, wanted {WEIGHTS}")
    if not case.recorded_trials:
        if not asks_agent:
            return CaseProblem(
                "recorded_trials",
                "empty, but open has no connector that calls an agent; give recorded trials, or a connector",
            )
        if not case.turns[0].input and not case.messages:
            return CaseProblem("turns[0].input", "empty, and no messages; the agent has nothing to answer")
    elif len(case.recorded_trials) > _MAX_TRIALS:
        return CaseProblem(
            "recorded_trials", f"got {len(case.recorded_trials)}, wanted at most {_MAX_TRIALS}"
        )
    for number, trial in enumerate(case.recorded_trials):
        if trial.HasField("error"):
            if trial.answers:
                return CaseProblem(
                    f"recorded_trials[{number}].answers", "got both answers and an error, wanted one of them"
                )
            continue
        if len(trial.answers) != len(case.turns):
            return CaseProblem(
                f"recorded_trials[{number}].answers",
                f"got {len(trial.answers)}, wanted one for each of the {len(case.turns)} turns",
            )
        for turn, answer in enumerate(trial.answers):
            asks = any(message.role == "user" for message in case.turns[turn].input)
            if not (answer.messages or answer.messages_json or asks):
                return CaseProblem(
                    f"recorded_trials[{number}].answers[{turn}].messages",
                    "empty, and the turn has no input of the user; wanted the messages of the turn",
                )
    asked = case.trials or setup.opened.trials
    if 0 < len(case.recorded_trials) < asked:
        return CaseProblem(
            "recorded_trials",
            f"got {len(case.recorded_trials)}, wanted at least the number of trials, {asked}; send more, or set the "
            "trials of the case",
        )
    trials, wanted = setup.trials(case), setup.min_passed(case)
    if wanted > trials:
        return CaseProblem("min_passed", f"got {wanted}, wanted at most the number of trials, {trials}")
    return None


def number_problems(pb: suite_service_pb2.SuiteOpen | wire_pb2.SuiteCase) -> list[CaseProblem]:
    """Return the problems of the number fields that a suite and a case share."""
    return [
        CaseProblem(name, f"got {getattr(pb, name)}, wanted 0 to {_MAX_TRIALS}")
        for name in ("trials", "min_passed")
        if not 0 <= getattr(pb, name) <= _MAX_TRIALS
    ]
