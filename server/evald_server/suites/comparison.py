"""Compares two suite runs, paired by case.

The rule: faults never help a run. A case that is in error, is missing, or has other evaluators or conditions in
the two runs could have passed or failed. If such cases could change the verdict, it is INCONCLUSIVE. Errors never
count as improvements.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from evald.fields import is_weight
from evald.v1 import evaluator_pb2, result_pb2, suite_service_pb2

from .statistics import (
    SIGNIFICANCE,
    change_interval,
    effect_size,
    mcnemar_p,
    permutation_p,
    smallest_detectable_drop,
)

MAX_DROP: Final = 0.05
"""The default of the largest accepted drop of the pass rate."""

_PASSED: Final = result_pb2.VERDICT_PASSED
_FAILED: Final = result_pb2.VERDICT_FAILED
_ERROR: Final = result_pb2.VERDICT_ERROR
_SKIPPED: Final = result_pb2.VERDICT_SKIPPED

PASS: Final = suite_service_pb2.COMPARISON_VERDICT_PASS
WARN: Final = suite_service_pb2.COMPARISON_VERDICT_WARN
BLOCK: Final = suite_service_pb2.COMPARISON_VERDICT_BLOCK
INCONCLUSIVE: Final = suite_service_pb2.COMPARISON_VERDICT_INCONCLUSIVE

_MAX_CHANGES: Final = 1000
_MAX_PROVENANCE_CHANGES: Final = 100

# Two p-values from drawn permutations differ by chance, by less than this. The slack favours INCONCLUSIVE.
_DRAWN_ERROR: Final = 0.02

_Case: TypeAlias = suite_service_pb2.CaseResult
_Passed: TypeAlias = tuple[bool, bool]
_Judged: TypeAlias = dict[str, set[tuple[str, ...]]]


def merge_by_id(base: Iterable[_Case], new: Iterable[_Case]) -> Iterator[tuple[_Case | None, _Case | None]]:
    """Yield the cases of two runs in pairs with the same id; None where a run has no such case.

    base, new: ordered by the code points of the ids. Raises ValueError if they are not, or for a duplicate id.
    """
    left, right = _ascending(base, "base"), _ascending(new, "new")
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.case_id < other.case_id):
            yield one, None
            one = next(left, None)
        elif one is None or other.case_id < one.case_id:
            yield None, other
            other = next(right, None)
        else:
            yield one, other
            one, other = next(left, None), next(right, None)


def _ascending(cases: Iterable[_Case], side: str) -> Iterator[_Case]:
    before = None
    for case in cases:
        if before is not None and case.case_id <= before:
            raise ValueError(
                f"{side}: case {case.case_id!r} comes after {before!r}, wanted each id once, in order"
            )
        before = case.case_id
        yield case


class _Evidence(NamedTuple):
    """The basis of a verdict: counts of pairs, the drop of the pass rate by weight, and changes of the scores."""

    pairs: int
    broken: int
    fixed: int
    drop: float
    scores: "array[float]"

    def verdict(self, max_drop: float, slack: float = 0.0) -> "suite_service_pb2.ComparisonVerdict":
        """Return PASS, WARN or BLOCK; INCONCLUSIVE for too few pairs. slack: added to the permutation test's level."""
        significant = (
            mcnemar_p(self.broken, self.fixed) < SIGNIFICANCE
            or permutation_p(self.scores) < SIGNIFICANCE + slack
        )
        if self.drop <= max_drop:
            return WARN if significant else PASS
        if significant:
            return BLOCK
        # With too few pairs no drop is significant, however many of them break.
        return WARN if smallest_detectable_drop(self.pairs) is not None else INCONCLUSIVE


class _Comparison:
    """Counts of cases. A case that passed or failed in both runs is a pair; others are in doubt if they could break."""

    def __init__(self, base: suite_service_pb2.SuiteRun, new: suite_service_pb2.SuiteRun) -> None:
        # Pairs by (passed in the base, passed in the new run): all, and those with the same evaluators and conditions.
        self.table: Counter[_Passed] = Counter()
        self.alike: Counter[_Passed] = Counter()
        # Their weights, as in the pass rate, and the sum of the squared weights.
        self.weights, self._alike_weights = (
            defaultdict[_Passed, float](float),
            defaultdict[_Passed, float](float),
        )
        self.squares = self._lost_weight = 0.0
        self._alike_scores, self._unlike_scores = array("d"), array("d")
        # Cases that are not pairs: how many could have broken, and the lowest possible changes of their scores.
        self._lost, self._lost_scores = 0, array("d")
        self.errors = self.base_only = self.new_only = 0
        self.judges: Counter[str] = Counter()
        self.changed: list[list[suite_service_pb2.CaseChange]] = [[], [], [], []]
        # Used for cases without trials.
        self._run_changes = _judge_changes(_of_run(base), _of_run(new))

    def add(self, base: _Case | None, new: _Case | None) -> None:
        """Add a case of one run or of both. A skipped case counts as absent."""
        old = _SKIPPED if base is None else _known(base.verdict)
        now = _SKIPPED if new is None else _known(new.verdict)
        if base is not None and new is not None:
            if old != now:
                self._note(base, old, new, now)
            if {old, now} <= {_PASSED, _FAILED}:
                self._add_pair(base, new)
                return
        if old == _SKIPPED:
            self.new_only += now != _SKIPPED
            return
        if now == _SKIPPED:
            self.base_only += 1
        else:
            self.errors += 1
        # At worst the case passed in the base and fails in the new run.
        if old != _FAILED and now != _PASSED:
            self._lost += 1
            self._lost_weight += _weight(new or base)
        before = 1.0 if old == _ERROR else _score(base)
        after = _score(new) if now == _PASSED else 0.0
        if before is not None and after is not None:
            self._lost_scores.append(after - before)

    def _add_pair(self, base: _Case, new: _Case) -> None:
        passed = base.verdict == _PASSED, new.verdict == _PASSED
        weight = _weight(new)
        self.table[passed] += 1
        self.weights[passed] += weight
        self.squares += weight * weight
        changes = self._run_changes
        if base.trials and new.trials:
            changes = _judge_changes(_of_case(base), _of_case(new))
        if base.conditions_sha256 != new.conditions_sha256:
            changes = [*changes, "the case: different input, expected answer, options, weights or trials"]
        self.judges.update(changes)
        if not changes:
            self.alike[passed] += 1
            self._alike_weights[passed] += weight
        before, after = _score(base), _score(new)
        if before is not None and after is not None:
            (self._unlike_scores if changes else self._alike_scores).append(after - before)

    @property
    def unlike(self) -> int:
        """The number of pairs whose evaluators or conditions differ between the runs."""
        return self.table.total() - self.alike.total()

    @property
    def weight(self) -> float:
        """The weight of all pairs."""
        return sum(self.weights.values())

    @property
    def _unlike_weight(self) -> float:
        return self.weight - sum(self._alike_weights.values())

    @property
    def seen(self) -> _Evidence:
        """The pairs as they are."""
        scores = self._alike_scores + self._unlike_scores
        weights = self.weights
        drop = _share(weights[True, False] - weights[False, True], self.weight)
        return _Evidence(self.table.total(), self.table[True, False], self.table[False, True], drop, scores)

    @property
    def worst(self) -> _Evidence:
        """The pairs if all cases in doubt had broken. Others are left out, because they would dilute the drop."""
        scores = self._alike_scores + array("d", [-1.0]) * len(self._unlike_scores) + self._lost_scores
        broken = self.alike[True, False] + self.unlike + self._lost
        alike, lost = self._alike_weights, self._lost_weight
        worse = alike[True, False] - alike[False, True] + self._unlike_weight + lost
        drop = _share(worse, self.weight + lost)
        return _Evidence(self.table.total() + self._lost, broken, self.alike[False, True], drop, scores)

    @property
    def best(self) -> _Evidence:
        """The pairs if those with other evaluators or conditions had been fixed. Errors never count as fixed."""
        scores = self._alike_scores + array("d", [1.0]) * len(self._unlike_scores)
        fixed = self.alike[False, True] + self.unlike
        alike = self._alike_weights
        drop = _share(alike[True, False] - alike[False, True] - self._unlike_weight, self.weight)
        return _Evidence(self.table.total(), self.alike[True, False], fixed, drop, scores)

    def _note(self, base: _Case, old: int, new: _Case, now: int) -> None:
        """Keep a changed verdict in its group: broken, now in error, other, now passed."""
        order = 0 if (old, now) == (_PASSED, _FAILED) else 1 if now == _ERROR else 3 if now == _PASSED else 2
        kept = self.changed[order]
        if len(kept) < _MAX_CHANGES:
            change = suite_service_pb2.CaseChange(
                case_id=new.case_id, base_verdict=base.verdict, new_verdict=new.verdict, reason=new.reason
            )
            if base.HasField("score"):
                change.base_score = base.score
            if new.HasField("score"):
                change.new_score = new.score
            kept.append(change)


def _known(verdict: int) -> int:
    """Return the verdict; ERROR for an unknown one."""
    return verdict if verdict in (_PASSED, _FAILED, _SKIPPED) else _ERROR


def _weight(case: _Case | None) -> float:
    """Return the weight in the pass rate; 1 for one that no case can have, since files may hold any number."""
    return case.weight if case is not None and is_weight(case.weight) else 1.0


def _share(weight: float, whole: float) -> float:
    return weight / whole if whole else 0.0


def _score(case: _Case | None) -> float | None:
    """Return the score; None if it is absent, or not from 0 to 1, since files may hold any number."""
    return case.score if case is not None and case.HasField("score") and 0 <= case.score <= 1 else None


def _of_case(case: _Case) -> _Judged:
    """Return the provenance of each enforced assertion of a case. It may differ by trial, so it is a set."""
    judged: _Judged = {}
    for trial in case.trials:
        for turn in trial.turns:
            for result in turn.evaluation.results:
                if (
                    result.kind != evaluator_pb2.EVALUATOR_KIND_METRIC
                    and result.enforcement != evaluator_pb2.ENFORCEMENT_SHADOW
                ):
                    known = judged.setdefault(result.name, set())
                    # A result without provenance did not run.
                    if result.HasField("provenance"):
                        known.add(_judge(result.type, result.version, result.provenance))
    return judged


def _of_run(run: suite_service_pb2.SuiteRun) -> _Judged:
    judged: _Judged = {}
    for item in run.provenance:
        judged.setdefault(item.name, set()).add(_judge(item.type, item.version, item.provenance))
    return judged


_FIELDS: Final = ("type", "version", "config", "models", "prompt")


def _judge(kind: str, version: str, made_by: result_pb2.Provenance) -> tuple[str, ...]:
    """Return the values of _FIELDS. The calibration card is not among them: it describes a judge, but does not change it."""
    models = ", ".join(made_by.judge_models)
    return kind, version, made_by.config_sha256[:12], models, made_by.prompt_sha256[:12]


def _judge_changes(base: _Judged, new: _Judged) -> list[str]:
    """Return the differences as text."""
    changes = [f"{name}: only in the base" for name in base.keys() - new.keys()]
    changes += [f"{name}: only in the new run" for name in new.keys() - base.keys()]
    for name in base.keys() & new.keys():
        old, now = base[name], new[name]
        if old and now and old != now:
            columns = zip(
                _FIELDS, zip(*sorted(old), strict=True), zip(*sorted(now), strict=True), strict=True
            )
            changes += [
                f"{name}: {field} {_several(before)} -> {_several(after)}"
                for field, before, after in columns
                if set(before) != set(after)
            ] or [f"{name}: different combinations of configs and models"]
    return changes


def _several(values: tuple[str, ...]) -> str:
    different = sorted(set(values))
    shown = [value or "none" for value in different[:3]]
    more = [f"{len(different) - 3} more"] if len(different) > 3 else []
    return " and ".join(shown + more)


def compare(
    base: suite_service_pb2.SuiteRun,
    new: suite_service_pb2.SuiteRun,
    pairs: Iterable[tuple[_Case | None, _Case | None]],
    max_drop: float = MAX_DROP,
) -> suite_service_pb2.SuiteComparison:
    """Return whether the new run is worse than the base, with p-values and intervals.

    pairs: the cases of both runs by id; see `merge_by_id`. max_drop: largest accepted drop of the pass rate.
    Raises ValueError unless max_drop is from 0 to 1.
    """
    if not 0 <= max_drop <= 1:
        raise ValueError(f"max_drop: got {max_drop:g}, wanted a number from 0 to 1")
    found = _Comparison(base, new)
    for one, other in pairs:
        found.add(one, other)
    seen = found.seen
    comparison = suite_service_pb2.SuiteComparison(
        base=base,
        new=new,
        pair_count=seen.pairs,
        broken_count=seen.broken,
        fixed_count=seen.fixed,
        error_count=found.errors,
        base_only_count=found.base_only,
        new_only_count=found.new_only,
        changes=[change for kept in found.changed for change in kept][:_MAX_CHANGES],
        provenance_changes=[
            f"{change} (cases: {count})"
            for change, count in sorted(found.judges.items(), key=lambda item: (-item[1], item[0]))
        ][:_MAX_PROVENANCE_CHANGES],
    )
    if seen.pairs:
        _fill_figures(comparison, found)
    comparison.verdict, comparison.reason = _decide(comparison, found, max_drop)
    return comparison


def _fill_figures(comparison: suite_service_pb2.SuiteComparison, found: _Comparison) -> None:
    seen = found.seen
    if found.weight:
        # As many pairs of equal weight as give the same precision (Kish).
        scale = found.weight / found.squares
        low, high = change_interval(
            *(
                found.weights[passed] * scale
                for passed in ((True, True), (True, False), (False, True), (False, False))
            )
        )
        comparison.pass_rate_change.CopyFrom(
            suite_service_pb2.Estimate(value=0.0 - seen.drop, low=low, high=high)
        )
    comparison.mcnemar_p = mcnemar_p(seen.broken, seen.fixed)
    detectable = smallest_detectable_drop(seen.pairs, min(seen.broken, seen.fixed) / seen.pairs)
    if detectable is not None:
        comparison.smallest_detectable_drop = detectable
    if seen.scores:
        comparison.score_change = sum(seen.scores) / len(seen.scores)
        comparison.permutation_p = permutation_p(seen.scores)
        effect = effect_size(seen.scores)
        if effect is not None:
            comparison.effect_size = effect


def _decide(
    comparison: suite_service_pb2.SuiteComparison, found: _Comparison, max_drop: float
) -> tuple["suite_service_pb2.ComparisonVerdict", str]:
    """Return the verdict and its reason."""
    for side, run in (("base", comparison.base), ("new run", comparison.new)):
        if run.status != suite_service_pb2.SUITE_RUN_STATUS_COMPLETED:
            return INCONCLUSIVE, f"The {side} did not complete"
    if not comparison.pair_count:
        return INCONCLUSIVE, "No case passed or failed in both runs"
    if not found.weight:
        return INCONCLUSIVE, "No case with a weight above 0 passed or failed in both runs"
    verdict = found.seen.verdict(max_drop)
    if verdict == INCONCLUSIVE:
        return verdict, f"{_change(comparison, found)}; too few pairs to tell this from chance"
    doubts = [
        f"{count} {what}"
        for count, what in (
            (found.errors, "in error"),
            (found.base_only, "only in the base"),
            (found.unlike, f"evaluated differently, {next(iter(comparison.provenance_changes), '')}"),
        )
        if count
    ]
    # Nothing is worse than BLOCK.
    possible = [found.worst.verdict(max_drop, _DRAWN_ERROR)] if doubts and verdict != BLOCK else []
    possible += [found.best.verdict(max_drop)] if found.unlike else []
    if set(possible) - {verdict}:
        return (
            INCONCLUSIVE,
            f"{_change(comparison, found)}; cases that could change the verdict: {' and '.join(doubts)}",
        )
    return verdict, f"{_change(comparison, found)}; {_judgement(comparison, verdict, max_drop)}"


def _change(comparison: suite_service_pb2.SuiteComparison, found: _Comparison) -> str:
    change = comparison.pass_rate_change.value
    rate = "Pass rate unchanged"
    if change:
        rate = f"Pass rate {'up' if change > 0 else 'down'} by {points(change)}"
    if found.weight**2 != found.squares * comparison.pair_count:
        rate += ", by weight,"
    counts = f"{comparison.broken_count} broken, {comparison.fixed_count} fixed"
    return f"{rate} over {comparison.pair_count} pairs ({counts})"


def points(change: float) -> str:
    """Return a change of a share in percentage points, without its sign."""
    return f"{abs(change) * 100:.3g} points"


def _judgement(
    comparison: suite_service_pb2.SuiteComparison,
    verdict: "suite_service_pb2.ComparisonVerdict",
    max_drop: float,
) -> str:
    allowed = f"the {points(max_drop)} allowed"
    p = comparison.mcnemar_p
    if comparison.HasField("permutation_p"):
        p = min(p, comparison.permutation_p)
    if verdict == BLOCK:
        return f"more than {allowed}, and not by chance (p = {p:.2g})"
    if verdict == WARN and comparison.pass_rate_change.value >= 0:
        return (
            f"the scores fell by {-comparison.score_change:.3g} on average, and not by chance (p = {p:.2g})"
        )
    if verdict == WARN and p < SIGNIFICANCE:
        return f"within {allowed}, but not by chance (p = {p:.2g})"
    if verdict == WARN:
        return f"more than {allowed}, but possibly by chance (p = {p:.2g})"
    if smallest_detectable_drop(comparison.pair_count) is None:
        return "not worse, but no drop could be told from chance with so few pairs"
    return "not worse" if comparison.pass_rate_change.value >= 0 else f"within {allowed}"
