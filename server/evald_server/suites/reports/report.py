"""What a report is made of."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from evald.records import read_kind, read_verdict
from evald.result import Kind, Verdict, measurement
from evald.structs import duration_ms, struct_to_dict
from evald.v1 import evaluator_pb2, result_pb2, suite_service_pb2


class SuiteReport(NamedTuple):
    """One suite run, to be written as a report.

    cases: read once by each writer, so that they may come from a file or a store page by page; a list, or
        anything else that can be read again, serves several writers.
    left_out: cases that the suite's file says to skip, with the reason. They were not sent.
    place: "FILE:LINE" of a case; "" where nobody knows.
    comparison: with an earlier suite run. history: earlier suite runs of the same suite and target.
    """

    run: suite_service_pb2.SuiteRun
    cases: Iterable[suite_service_pb2.CaseResult]
    left_out: Sequence[tuple[str, str]] = ()
    place: Callable[[str], str] = lambda case_id: ""
    comparison: suite_service_pb2.SuiteComparison | None = None
    history: Sequence[suite_service_pb2.SuiteRun] = ()

    @property
    def name(self) -> str:
        """The suite and what was tested."""
        return f"{self.run.suite}/{self.run.target}" if self.run.target else self.run.suite

    def file_and_line(self, case_id: str) -> dict[str, str]:
        """Return `file` and `line` of a case; nothing where they are not known."""
        file, _, line = self.place(case_id).rpartition(":")
        return {"file": file, "line": line} if file and line.isdigit() else {}


class WrongCases(ValueError):
    """The cases are not those of the suite run: a report would say what is not so."""


_COUNTS: Final = {
    Verdict.PASSED: "passed_count",
    Verdict.FAILED: "failed_count",
    Verdict.ERROR: "error_count",
    Verdict.SKIPPED: "skipped_count",
}


def checked_cases(report: SuiteReport) -> Iterator[tuple[suite_service_pb2.CaseResult, Verdict]]:
    """Yield the cases with their verdicts; one of an unknown verdict is an ERROR.

    Raises WrongCases after the last one unless they add up to the counts of the suite run.
    """
    seen: Counter[Verdict] = Counter()
    for case in report.cases:
        verdict = read_verdict(case.verdict)
        seen[verdict] += 1
        yield case, verdict
    for verdict, name in _COUNTS.items():
        if seen[verdict] != getattr(report.run, name):
            raise WrongCases(
                f"{report.name}: {seen[verdict]:,} cases are {verdict.name}, but the suite run counts "
                f"{getattr(report.run, name):,}; read the cases of suite run {report.run.id!r} again"
            )


def lacks_a_red_case(run: suite_service_pb2.SuiteRun) -> bool:
    """Return whether a run that did not pass has no case that says so, such as one without cases."""
    return read_verdict(run.verdict) is not Verdict.PASSED and not run.failed_count and not run.error_count


def results(case: suite_service_pb2.CaseResult) -> Iterator[tuple[str, result_pb2.EvaluationResult]]:
    """Yield all results of a case, each with where it is, such as "trial 2, turn 1"; "" in the usual case."""
    for trial in case.trials:
        for turn in trial.turns:
            places = (f"trial {trial.trial}",) if len(case.trials) > 1 else ()
            if len(trial.turns) > 1:
                places = (*places, f"turn {turn.turn}")
            for result in turn.evaluation.results:
                yield ", ".join(places), result


def red_results(case: suite_service_pb2.CaseResult) -> Iterator[str]:
    """Yield a line for everything that failed or gave no verdict in a case."""
    for trial in case.trials:
        if trial.HasField("error"):
            number = f"trial {trial.trial}: " if len(case.trials) > 1 else ""
            yield f"{number}ERROR {trial.error.code}: {trial.error.message}"
    for place, result in results(case):
        verdict = read_verdict(result.verdict)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            where = f"{place}: " if place else ""
            shadow = " (shadow)" if result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW else ""
            yield f"{where}{result.name}: {verdict.name}{shadow}: {reason_of(result)}"


def reason_of(result: result_pb2.EvaluationResult) -> str:
    """Return the reason; for an error it begins with the error's code."""
    if result.HasField("error"):
        return f"{result.error.code}: {result.error.message or result.reason}"
    return result.reason


def is_metric(result: result_pb2.EvaluationResult) -> bool:
    """Return whether the result is a measurement, which never fails."""
    return read_kind(result.kind) is Kind.METRIC


def measured(result: result_pb2.EvaluationResult) -> float | None:
    """Return what a metric measured; None where it could not, and for assertions."""
    if (
        not is_metric(result)
        or read_verdict(result.verdict) is not Verdict.PASSED
        or not result.HasField("value")
    ):
        return None
    return measurement(result.value, struct_to_dict(result.metadata))


def case_seconds(case: suite_service_pb2.CaseResult) -> float:
    """Return how long the agent and the evaluators took over a case, all its trials together."""
    turns = [turn for trial in case.trials for turn in trial.turns]
    return sum(duration_ms(turn.latency) + duration_ms(turn.evaluation.duration) for turn in turns) / 1000
