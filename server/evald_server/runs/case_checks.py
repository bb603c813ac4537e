"""What a case of a suite must be before it runs."""

from typing import Final, NamedTuple

from evald.v1 import suite_service_pb2
from evald_server import wire_pb2
from evald_server.suites.verdicts import MAX_WEIGHT, MIN_WEIGHT

from .recorded import CaseSetup

_MAX_CASE_ID: Final = 256  # bytes: PostgreSQL has no index for much longer ones
_MAX_TRIALS: Final = 100


class CaseProblem(NamedTuple):
    """What is wrong with a field of a case."""

    field: str
    message: str


def case_problem(case: wire_pb2.SuiteCase, setup: CaseSetup, *, asks_agent: bool) -> CaseProblem | None:
    """Return the first thing that is wrong with a case beside its evaluators.

    asks_agent: whether there is one to ask.
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
    if case.weight and not MIN_WEIGHT <= case.weight <= MAX_WEIGHT:  # nor NaN
        return CaseProblem("weight", f"got {case.weight}, wanted 0, or {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    if not case.recorded_trials:
        if not asks_agent:
            return CaseProblem("recorded_trials", "empty, and open names no connector that reaches an agent")
        if not case.turns[0].input and not case.messages:
            return CaseProblem("turns[0].input", "empty, and no messages; the agent has nothing to answer")
    elif len(case.recorded_trials) > _MAX_TRIALS:
        return CaseProblem(
            "recorded_trials", f"got {len(case.recorded_trials)}, wanted at most {_MAX_TRIALS}"
        )
    for number, trial in enumerate(case.recorded_trials):
        if trial.HasField("error"):
            if trial.answers:
                return CaseProblem(f"recorded_trials[{number}].answers", "given beside an error")
            continue
        if len(trial.answers) != len(case.turns):
            return CaseProblem(
                f"recorded_trials[{number}].answers",
                f"got {len(trial.answers)}, wanted one for each of the {len(case.turns)} turns",
            )
        for turn, answer in enumerate(trial.answers):
            if not (answer.messages or answer.messages_json or case.turns[turn].input):
                return CaseProblem(
                    f"recorded_trials[{number}].answers[{turn}].messages",
                    "empty, and so is the turn's input; wanted what was said",
                )
    trials, wanted = setup.trials(case), setup.min_passed(case)
    if wanted > trials:
        return CaseProblem("min_passed", f"got {wanted}, wanted at most its number of trials, {trials}")
    return None


def number_problems(pb: suite_service_pb2.SuiteOpen | wire_pb2.SuiteCase) -> list[CaseProblem]:
    """Return what is wrong with the numbers that a suite and a case have both."""
    return [
        CaseProblem(name, f"got {getattr(pb, name)}, wanted 0 to {_MAX_TRIALS}")
        for name in ("trials", "min_passed")
        if not 0 <= getattr(pb, name) <= _MAX_TRIALS
    ]
