"""Computes the verdicts of trials, cases and suites, and the figures of a suite run. No other module does.

All verdicts are three-valued. A turn, trial or case in error could have passed or failed, so it decides nothing
by itself; a verdict that depends on it is ERROR.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from evald.result import reaches
from evald.v1 import (
    evaluator_pb2,
    message_pb2,
    result_pb2,
    run_service_pb2,
    suite_service_pb2,
)

from ..evaluator_counts import EvaluatorCounts
from ..pages.formats import rounded_percent
from .statistics import Interval, estimate_mean, pass_at_k, pass_hat_k, wilson

_PASSED: Final = result_pb2.VERDICT_PASSED
_FAILED: Final = result_pb2.VERDICT_FAILED
_ERROR: Final = result_pb2.VERDICT_ERROR
_SKIPPED: Final = result_pb2.VERDICT_SKIPPED

# A part of a suite run's reason.
NOTHING_COUNTED: Final = "no assertion counted"

# Largest value of an int64 field. A single answer may report that many.
_MOST_TOKENS: Final = (1 << 63) - 1

# More than the evaluators of usual suites. Without a limit, cases with configs of their own add one entry each.
_MAX_PROVENANCE: Final = 1000


def trial_verdict(verdicts: Iterable[int]) -> "result_pb2.Verdict":
    """Return the worst verdict of a trial's turns: FAILED, ERROR, PASSED, SKIPPED; ERROR without turns.

    An unknown verdict counts as ERROR.
    """
    seen = set(verdicts)
    if _FAILED in seen:
        return _FAILED
    if not seen <= {_PASSED, _SKIPPED} or not seen:
        return _ERROR
    return _PASSED if _PASSED in seen else _SKIPPED


def decide_trial(trial: suite_service_pb2.TrialResult) -> None:
    """Set verdict, score and reason of a trial from its turns and its error."""
    evaluated = [turn for turn in trial.turns if turn.HasField("evaluation")]
    verdicts = [turn.evaluation.verdict for turn in evaluated]
    broken = trial.HasField("error")
    trial.verdict = trial_verdict([*verdicts, _ERROR] if broken else verdicts)
    if evaluated and evaluated[-1].evaluation.HasField("score"):
        trial.score = evaluated[-1].evaluation.score
    else:
        trial.ClearField("score")
    if broken and trial.verdict == _ERROR:
        trial.reason = f"{trial.error.code}: {trial.error.message}"
    else:
        trial.reason = _reason_of_turns(evaluated, trial.verdict)


def _reason_of_turns(evaluated: list[run_service_pb2.RunTurn], verdict: int) -> str:
    """Return the reason of the first turn with this verdict; for PASSED and SKIPPED, of the last such turn."""
    if not evaluated:
        return "No turn was evaluated"
    ordered = evaluated[::-1] if verdict in (_PASSED, _SKIPPED) else evaluated
    turn = next((turn for turn in ordered if turn.evaluation.verdict == verdict), ordered[0])
    if len(evaluated) == 1 or verdict in (_PASSED, _SKIPPED):
        return turn.evaluation.reason
    return f"Turn {turn.turn}: {turn.evaluation.reason}"


class CaseVerdict(NamedTuple):
    """The verdict of a case over its trials."""

    verdict: "result_pb2.Verdict"
    reason: str
    passed: int
    failed: int
    errors: int


def case_verdict(verdicts: Iterable[int], min_passed: int) -> CaseVerdict:
    """Return the verdict of a case whose trials have these verdicts.

    PASSED: at least min_passed trials passed. FAILED: too few would have passed even if all trials in error had
    passed. SKIPPED: all trials were skipped. Otherwise ERROR. min_passed: 0 means all trials not skipped.
    """
    verdicts = list(verdicts)
    passed, failed, skipped = map(verdicts.count, (_PASSED, _FAILED, _SKIPPED))
    trials = len(verdicts)
    errors = trials - passed - failed - skipped
    if skipped == trials:
        verdict = _SKIPPED if trials else _ERROR
        return CaseVerdict(verdict, "All trials were skipped" if trials else "No trial ran", 0, 0, 0)
    needed = min_passed or trials - skipped
    verdict = _PASSED if passed >= needed else _FAILED if passed + errors < needed else _ERROR
    reason = f"{passed} of {trials} trials passed, {needed} needed"
    reason += "".join(
        f", {count} {what}" for count, what in ((errors, "in error"), (skipped, "skipped")) if count
    )
    return CaseVerdict(verdict, reason, passed, failed, errors)


def decide_case(case: suite_service_pb2.CaseResult, min_passed: int = 0) -> None:
    """Set verdict, score, reason and counts of a case from its trials, which have verdicts. See `case_verdict`."""
    trials = case.trials
    found = case_verdict([trial.verdict for trial in trials], min_passed)
    case.verdict = found.verdict
    case.passed_count, case.failed_count, case.error_count = found.passed, found.failed, found.errors
    scores = [trial.score for trial in trials if trial.HasField("score")]
    if scores:
        case.score = sum(scores) / len(scores)
    else:
        case.ClearField("score")
    case.reason = found.reason
    if len(trials) == 1:
        case.reason = trials[0].reason
    elif found.verdict in (_FAILED, _ERROR):
        why = next((trial for trial in trials if trial.verdict == found.verdict), None)
        if why is not None and why.reason:
            case.reason += f"; trial {why.trial}: {why.reason}"


def suite_verdict(
    passed: float, failed: float, errors: float, threshold: float
) -> tuple["result_pb2.Verdict", str]:
    """Return the verdict of a suite run and its reason. passed, failed, errors: total weight of the cases with this verdict.

    PASSED: the passed share reaches the threshold even if all cases in error had failed. FAILED: it would not
    reach it even if they had all passed. Otherwise ERROR, also when no case with a weight passed or failed.
    """
    whole = passed + failed + errors
    if not passed + failed:
        return _ERROR, "No case that counts passed or failed"
    at_least, at_most = passed / whole, (passed + errors) / whole
    wanted = f"{_percent(threshold)} wanted"
    if not errors:
        reason = f"{_percent(at_least)} of the cases passed, {wanted}"
    else:
        reason = (
            f"{_percent(at_least)} to {_percent(at_most)} of the cases passed, because of errors, {wanted}"
        )
    if threshold == 1:  # every case must pass, however small its weight
        return _FAILED if failed else _ERROR if errors else _PASSED, reason
    if reaches(at_least, threshold):
        return _PASSED, reason
    return _ERROR if reaches(at_most, threshold) else _FAILED, reason


def _percent(share: float) -> str:
    return f"{rounded_percent(share):g} %"


class _Spending:
    """Sums of tokens and money. Values that were never reported stay absent."""

    def __init__(self) -> None:
        self.tokens: defaultdict[str, int] = defaultdict(int)
        self.money: defaultdict[str, float] = defaultdict(float)

    def add_tokens(self, usage: message_pb2.TokenUsage) -> None:
        for field, count in usage.ListFields():
            self.tokens[field.name] += count

    def add_cost(self, cost: message_pb2.Cost) -> None:
        self.money[cost.currency_code] += cost.amount

    def merge(self, other: "_Spending") -> None:
        for name, count in other.tokens.items():
            self.tokens[name] += count
        for currency, amount in other.money.items():
            self.money[currency] += amount

    def fill(self, run: suite_service_pb2.SuiteRun, prefix: str = "") -> None:
        """Set the fields of a suite run. The cost is left out if it has several currencies, or exceeds a double."""
        for name in ("token_usage", "cost"):
            run.ClearField(prefix + name)
        for name, count in self.tokens.items():
            setattr(getattr(run, f"{prefix}token_usage"), name, min(count, _MOST_TOKENS))
        if len(self.money) == 1 and math.isfinite(sum(self.money.values())):
            [(currency, amount)] = self.money.items()
            getattr(run, f"{prefix}cost").CopyFrom(message_pb2.Cost(currency_code=currency, amount=amount))


class SuiteTotals:
    """The totals of a suite run. Memory grows with evaluators and trials, not with cases."""

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = threshold
        self.verdicts: Counter[int] = Counter()
        self.weights = {_PASSED: 0.0, _FAILED: 0.0, _ERROR: 0.0, _SKIPPED: 0.0}
        self.norm = 0.0  # Euclidean norm of the weights of passed and failed cases
        self.scores, self.scored = 0.0, 0
        self.uncounted = 0  # cases that passed with metrics and shadow assertions alone
        # Number of cases by (trials that passed or failed, trials that passed).
        self.trials: Counter[tuple[int, int]] = Counter()
        self.sizes: set[int] = set()
        self.evaluators: defaultdict[str, EvaluatorCounts] = defaultdict(EvaluatorCounts)
        self.provenance: dict[tuple[str, str, str, bytes], None] = {}
        self.cached_answers = 0
        self.latency, self.latencies = 0, 0
        self.agent, self.judges = _Spending(), _Spending()

    def add(self, case: suite_service_pb2.CaseResult, *, results: bool = True) -> None:
        """Add a case with a verdict; see `decide_case`. results: whether to add its evaluators' results. If not,
        the caller adds them with `count` and `add_provenance`."""
        verdict = case.verdict
        if verdict not in self.weights:
            verdict = _ERROR
        self.verdicts[verdict] += 1
        weight = case.weight
        self.weights[verdict] += weight
        if verdict in (_PASSED, _FAILED):
            self.norm = math.hypot(self.norm, weight)
        if case.HasField("score"):
            self.scores += case.score
            self.scored += 1
        passed = case.passed_count
        self.trials[passed + case.failed_count, passed] += 1
        trials = case.trials
        self.sizes.add(len(trials))
        counted = verdict != _PASSED
        for trial in trials:
            for turn in trial.turns:
                self._add_turn(turn)
                counted = counted or turn.evaluation.passed_count + turn.evaluation.failed_count > 0
                for result in turn.evaluation.results if results else ():
                    value = turn.evaluation.metrics.get(result.name)
                    self.count(result, result.verdict, value)
                    self.cached_answers += result.cached_answer_count
                    self.add_provenance(result)
        self.uncounted += not counted

    def count(
        self,
        result: result_pb2.EvaluationResult,
        verdict: int,
        value: float | None,
        count: int = 1,
    ) -> None:
        """Add `count` equal results of an evaluator.

        result: has the evaluator's name, kind and enforcement. value: of a metric; None when unavailable.
        """
        enforced = result.enforcement != evaluator_pb2.ENFORCEMENT_SHADOW
        self.evaluators[result.name].add(result.kind, enforced, verdict, value, count)

    def add_provenance(self, result: result_pb2.EvaluationResult) -> None:
        """Add the provenance of a result."""
        if result.HasField("provenance") and len(self.provenance) < _MAX_PROVENANCE:
            key = (result.name, result.type, result.version, result.provenance.SerializeToString())
            self.provenance.setdefault(key)

    def merge(self, other: "SuiteTotals") -> None:
        """Add the cases of other totals."""
        self.verdicts += other.verdicts
        for verdict, weight in other.weights.items():
            self.weights[verdict] += weight
        self.norm = math.hypot(self.norm, other.norm)
        self.scores += other.scores
        self.scored += other.scored
        self.uncounted += other.uncounted
        self.trials += other.trials
        self.sizes |= other.sizes
        for name, counts in other.evaluators.items():
            self.evaluators[name].merge(counts)
        for key in other.provenance:
            if len(self.provenance) < _MAX_PROVENANCE:
                self.provenance.setdefault(key)
        self.cached_answers += other.cached_answers
        self.latency += other.latency
        self.latencies += other.latencies
        self.agent.merge(other.agent)
        self.judges.merge(other.judges)

    def _add_turn(self, turn: run_service_pb2.RunTurn) -> None:
        if turn.HasField("latency"):
            latency = turn.latency
            self.latency += latency.seconds * 1_000_000_000 + latency.nanos
            self.latencies += 1
        if turn.HasField("token_usage"):
            self.agent.add_tokens(turn.token_usage)
        if turn.HasField("cost"):
            self.agent.add_cost(turn.cost)
        evaluation = turn.evaluation
        if evaluation.HasField("token_usage"):
            self.judges.add_tokens(evaluation.token_usage)
        if evaluation.HasField("cost"):
            self.judges.add_cost(evaluation.cost)

    def fill(self, run: suite_service_pb2.SuiteRun) -> None:
        """Set all figures of a suite run, its verdict and its reason. Does not change its status."""
        counts, weights = self.verdicts, self.weights
        run.threshold = self.threshold
        run.case_count = counts.total()
        run.passed_count, run.failed_count = counts[_PASSED], counts[_FAILED]
        run.error_count, run.skipped_count = counts[_ERROR], counts[_SKIPPED]
        run.cached_answer_count = self.cached_answers
        run.verdict, run.reason = suite_verdict(
            weights[_PASSED], weights[_FAILED], weights[_ERROR], self.threshold
        )
        if self.uncounted:
            run.reason += f"; {NOTHING_COUNTED} in {self.uncounted:,} of the {counts[_PASSED]:,} that passed"
        self._fill_means(run)
        self._fill_trials(run)
        self._fill_evaluators(run)
        self.agent.fill(run)
        self.judges.fill(run, "evaluator_")

    def _fill_means(self, run: suite_service_pb2.SuiteRun) -> None:
        for name in ("pass_rate", "mean_score", "mean_latency_seconds", "error_share"):
            run.ClearField(name)
        judged = self.weights[_PASSED] + self.weights[_FAILED]
        if judged:
            share = self.weights[_PASSED] / judged
            if self.weights[_FAILED]:
                share = min(share, math.nextafter(1.0, 0.0))  # rounding must not hide a failed case
            # Kish's effective size: the number of cases of equal weight with the same precision.
            size = (judged / self.norm) ** 2
            run.pass_rate.CopyFrom(_estimate(share, wilson(share * size, size)))
        if judged + self.weights[_ERROR]:
            run.error_share = self.weights[_ERROR] / (judged + self.weights[_ERROR])
        if self.scored:
            run.mean_score = self.scores / self.scored
        if self.latencies:
            run.mean_latency_seconds = self.latency / self.latencies * 1e-9

    def _fill_trials(self, run: suite_service_pb2.SuiteRun) -> None:
        run.trials = next(iter(self.sizes)) if len(self.sizes) == 1 else 0
        run.unstable_count = sum(count for (n, c), count in self.trials.items() if 0 < c < n)
        del run.trial_estimates[:]
        most = max(self.sizes, default=0)
        for k in range(1, most + 1) if most > 1 else ():
            estimate = trial_estimate(self.trials, k)
            if estimate is not None:
                run.trial_estimates.append(estimate)

    def _fill_evaluators(self, run: suite_service_pb2.SuiteRun) -> None:
        run.evaluators.clear()
        for name, counts in self.evaluators.items():
            counts.fill(run.evaluators[name])
        del run.provenance[:]
        for name, kind, version, data in sorted(self.provenance):
            run.provenance.add(
                name=name, type=kind, version=version, provenance=result_pb2.Provenance.FromString(data)
            )


def trial_estimate(trials: Mapping[tuple[int, int], int], k: int) -> suite_service_pb2.TrialEstimate | None:
    """Return pass@k and pass^k over the cases with at least k trials; None without such cases.

    trials: number of cases by (trials that passed or failed, trials that passed).
    """
    cases = [(n, c, count) for (n, c), count in trials.items() if n >= k]
    number = sum(count for _, _, count in cases)
    if not number:
        return None
    # Mean number of separate groups of k trials per case.
    groups = sum(n * count for n, _, count in cases) / k / number
    some = estimate_mean(((pass_at_k(n, c, k) or 0.0, count) for n, c, count in cases), groups)
    every = estimate_mean(((pass_hat_k(n, c, k) or 0.0, count) for n, c, count in cases), groups)
    return suite_service_pb2.TrialEstimate(
        k=k,
        any_passes=_estimate(some.value, some.interval),
        all_pass=_estimate(every.value, every.interval),
        case_count=number,
    )


def _estimate(value: float, interval: Interval) -> suite_service_pb2.Estimate:
    return suite_service_pb2.Estimate(value=value, low=interval.low, high=interval.high)
