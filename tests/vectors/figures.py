"""Vectors of trials and statistics: figures that evald computes from another system's input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evald.result import Verdict
from evald.v1 import suite_service_pb2
from evald_server.suites.statistics import estimate_mean
from evald_server.suites.verdicts import decide_case

from .replay import Outcome


@dataclass(frozen=True)
class Figures:
    """Computes figures by name. None: undefined."""

    compute: Callable[[], Mapping[str, Any]]

    def __call__(self) -> Outcome:
        """Compute the figures."""
        return Outcome(run=self.compute())


def case_figures(trials: Sequence[tuple[float, bool]], min_passed: int = 0) -> dict[str, Any]:
    """Return the figures of a case from the scores and verdicts of its trials."""
    case = suite_service_pb2.CaseResult()
    for number, (score, passed) in enumerate(trials, 1):
        verdict = Verdict.PASSED if passed else Verdict.FAILED
        case.trials.add(trial=number, score=score, verdict=verdict)
    decide_case(case, min_passed)
    return {
        "verdict": Verdict(case.verdict),
        "score": case.score,
        "passed": case.passed_count,
        "trials": len(case.trials),
    }


def mean_figures(scores: Sequence[float]) -> dict[str, Any]:
    """Return the mean of a score over cases, and its interval."""
    mean, (low, high) = estimate_mean((score, 1) for score in scores)
    return {"mean": mean, "low": low, "high": high}
