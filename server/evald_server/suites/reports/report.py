"""The data of a report, and functions that several reports share."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from evald.records import read_kind, read_verdict
from evald.result import Kind, Verdict, measurement
from evald.structs import duration_ms, struct_to_dict
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2, suite_service_pb2


class SuiteReport(NamedTuple):
    """The data of a report about one suite run.

    cases: each writer reads them once, so they may be streamed from a file or a store. Several writers need a list,
        or another iterable that can be read again.
    left_out: (id, reason) of the cases that the suite file skips. They were not sent.
    place: returns "FILE:LINE" of a case by its id; "" if unknown.
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
        """The names of the suite and the target."""
        return f"{self.run.suite}/{self.run.target}" if self.run.target else self.run.suite

    def file_and_line(self, case_id: str) -> dict[str, str]:
        """Return `file` and `line` of a case; an empty dict if they are unknown."""
        file, _, line = self.place(case_id).rpartition(":")
        return {"file": file, "line": line} if file and line.isdigit() else {}


class WrongCases(ValueError):
    """The error of cases that do not match the suite run. A report about them would be wrong."""


_COUNTS: Final = {
    Verdict.PASSED: "passed_count",
    Verdict.FAILED: "failed_count",
    Verdict.ERROR: "error_count",
    Verdict.SKIPPED: "skipped_count",
}


def checked_cases(report: SuiteReport) -> Iterator[tuple[suite_service_pb2.CaseResult, Verdict]]:
    """Yield the cases with their verdicts; an unknown verdict becomes ERROR.

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
    """Return whether a run did not pass although no case failed or is in error, for example without cases."""
    return read_verdict(run.verdict) is not Verdict.PASSED and not run.failed_count and not run.error_count


def results(case: suite_service_pb2.CaseResult) -> Iterator[tuple[str, result_pb2.EvaluationResult]]:
    """Yield each result of a case with its place, such as "trial 2, turn 1"; "" if there is one trial with one turn."""
    for trial in case.trials:
        for turn in trial.turns:
            places = (f"trial {trial.trial}",) if len(case.trials) > 1 else ()
            if len(trial.turns) > 1:
                places = (*places, f"turn {turn.turn}")
            for result in turn.evaluation.results:
                yield ", ".join(places), result


def reason_of(result: result_pb2.EvaluationResult) -> str:
    """Return the reason; for an error it begins with the error's code."""
    if result.HasField("error"):
        return f"{result.error.code}: {result.error.message or result.reason}"
    return result.reason


def is_metric(result: result_pb2.EvaluationResult) -> bool:
    """Return whether the result is a measurement, which never fails."""
    return read_kind(result.kind) is Kind.METRIC


def metric_means(past: Sequence[suite_service_pb2.SuiteRun]) -> dict[str, list[float | None]]:
    """Return the means of each metric by name, one for each suite run; None where it has none."""
    means = [
        {
            name: totals.mean_value
            for name, totals in run.evaluators.items()
            if measures(totals) and totals.HasField("mean_value")
        }
        for run in past
    ]
    return {name: [found.get(name) for found in means] for name in sorted({*chain(*means)})}


def measures(totals: evaluation_service_pb2.EvaluatorTotals) -> bool:
    """Return whether totals are those of a metric."""
    return totals.kind == evaluator_pb2.EVALUATOR_KIND_METRIC


def evaluator_name(name: str, totals: evaluation_service_pb2.EvaluatorTotals) -> str:
    """Return the name in a table of totals, which says if its verdicts did not count."""
    return f"{name} (shadow)" if totals.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW else name


def measured(result: result_pb2.EvaluationResult) -> float | None:
    """Return the value of a metric; None if it is unavailable, and for assertions."""
    if (
        not is_metric(result)
        or read_verdict(result.verdict) is not Verdict.PASSED
        or not result.HasField("value")
    ):
        return None
    return measurement(result.value, struct_to_dict(result.metadata))


def case_seconds(case: suite_service_pb2.CaseResult) -> float:
    """Return the seconds that the agent and the evaluators took for all trials of a case."""
    turns = [turn for trial in case.trials for turn in trial.turns]
    return sum(duration_ms(turn.latency) + duration_ms(turn.evaluation.duration) for turn in turns) / 1000
