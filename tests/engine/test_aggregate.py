"""Properties of the verdict of a call."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.result import Verdict
from evald_server.engine.aggregate import Policy, aggregate, is_lost

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


@dataclass
class Weighed:
    counts: bool = True
    fail_open: bool = False
    required: bool = False
    weight: float = 1.0


@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        pytest.param([], PASSED, id="no assertion at all"),
        pytest.param([PASSED, PASSED], PASSED, id="all passed"),
        pytest.param([PASSED, FAILED], FAILED, id="one failed"),
        pytest.param([PASSED, ERROR], ERROR, id="one broke"),
        pytest.param([ERROR, FAILED], FAILED, id="failed outranks error"),
        pytest.param([SKIPPED, PASSED], PASSED, id="skipped counts for nothing"),
        pytest.param([SKIPPED, SKIPPED], SKIPPED, id="all skipped is not passed"),
    ],
)
@pytest.mark.parametrize("policy", list(Policy))
def test_failed_outranks_error_outranks_passed(
    verdicts: list[Verdict], wanted: Verdict, policy: Policy
) -> None:
    results = [(verdict, None) for verdict in verdicts]
    assert aggregate([Weighed() for _ in results], results, policy).verdict is wanted


def test_the_score_is_the_lowest_one_and_the_mean_stands_beside_it() -> None:
    uses = [Weighed(), Weighed(weight=3), Weighed()]
    total = aggregate(uses, [(PASSED, 1.0), (FAILED, 0.2), (PASSED, 0.4)])
    assert (total.score, total.min_score, total.mean_score) == (0.2, 0.2, pytest.approx(0.4))


def test_no_score_is_not_a_score_of_zero() -> None:
    total = aggregate([Weighed()], [(PASSED, None)])
    assert (total.score, total.min_score) == (None, None)


@pytest.mark.parametrize(("threshold", "wanted"), [(0.8, PASSED), (0.81, FAILED), (0.0, PASSED)], ids=str)
def test_the_weighted_mean_passes_from_its_threshold_on(threshold: float, wanted: Verdict) -> None:
    uses = [Weighed(weight=4), Weighed(weight=1)]
    total = aggregate(uses, [(PASSED, 1.0), (FAILED, 0.0)], Policy.WEIGHTED_MEAN, threshold)
    assert (total.verdict, total.score) == (wanted, pytest.approx(0.8))


@pytest.mark.parametrize(("score", "wanted"), [(0.8, PASSED), (0.79, FAILED)])
def test_the_mean_must_be_at_least_0_8_unless_told_otherwise(score: float, wanted: Verdict) -> None:
    assert aggregate([Weighed()], [(PASSED, score)], Policy.WEIGHTED_MEAN).verdict is wanted


def test_weights_that_add_up_to_nothing_give_a_mean_of_zero() -> None:
    total = aggregate([Weighed(weight=0)], [(PASSED, 1.0)], Policy.WEIGHTED_MEAN)
    assert (total.verdict, total.score) == (FAILED, 0.0)


def test_rounding_of_the_mean_does_not_fail_a_call() -> None:
    total = aggregate([Weighed() for _ in range(3)], [(PASSED, 0.1)] * 3, Policy.WEIGHTED_MEAN, 0.1)
    assert total.verdict is PASSED


def test_no_miss_is_so_light_that_it_is_lost_in_rounding() -> None:
    uses = [Weighed(weight=1000), Weighed(weight=1e-9)]
    total = aggregate(uses, [(PASSED, 1.0), (FAILED, 0.0)], Policy.WEIGHTED_MEAN, 1)
    assert total.verdict is FAILED


@pytest.mark.parametrize("policy", list(Policy))
def test_a_missed_required_assertion_fails_whatever_the_policy(policy: Policy) -> None:
    uses = [Weighed(weight=99), Weighed(required=True, weight=0)]
    total = aggregate(uses, [(PASSED, 1.0), (FAILED, 0.7)], policy, 0.1)
    assert (total.verdict, total.score, total.deciding) == (FAILED, 0.0, 1)


def test_a_required_assertion_that_broke_is_never_ignored() -> None:
    uses = [Weighed(), Weighed(required=True, fail_open=True)]
    assert aggregate(uses, [(PASSED, 1.0), (ERROR, None)]).verdict is ERROR


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ([(PASSED, 0.5), (ERROR, None)], ERROR),
        ([(PASSED, 0.9), (ERROR, None)], ERROR),
        ([(PASSED, 0.5), (SKIPPED, None)], FAILED),
        ([(FAILED, 0.5), (ERROR, None)], FAILED),
    ],
)
def test_a_mean_that_an_error_might_have_lifted_is_inconclusive(
    results: list[tuple[Verdict, float | None]], wanted: Verdict
) -> None:
    uses = [Weighed(), Weighed(weight=9)]
    total = aggregate(uses, results, Policy.WEIGHTED_MEAN)
    assert (total.verdict, is_lost(uses, results, Policy.WEIGHTED_MEAN)) == (wanted, results[0][0] is FAILED)


def test_fail_open_ignores_the_error_and_says_so() -> None:
    total = aggregate([Weighed(), Weighed(fail_open=True)], [(PASSED, 1.0), (ERROR, None)])
    assert (total.verdict, total.ignored_errors) == (PASSED, [1])


def test_fail_open_on_everything_is_skipped_not_passed() -> None:
    assert aggregate([Weighed(fail_open=True)], [(ERROR, None)]).verdict is SKIPPED


def test_metrics_and_shadow_results_change_nothing() -> None:
    uses = [Weighed(), *[Weighed(counts=False)] * 4]
    results = [(PASSED, 0.9), (FAILED, 0.0), (ERROR, None), (SKIPPED, None), (SKIPPED, None)]
    for policy in Policy:
        total = aggregate(uses, results, policy, not_run=[4])
        assert (total.verdict, total.score, total.mean_score) == (PASSED, 0.9, 0.9)
        assert (total.passed, total.failed, total.errors, total.skipped) == (1, 0, 1, 2)
        assert not is_lost(uses, results, policy)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(
    ("results", "required", "deciding", "counts"),
    [
        ([PASSED, FAILED, FAILED], (), 1, (1, 2, 0, 0)),
        ([FAILED, ERROR, FAILED], (), 0, (0, 2, 1, 0)),
        ([FAILED, FAILED, FAILED], (1, 2), None, (0, 3, 0, 0)),
        ([PASSED, ERROR, ERROR], (), 1, (1, 0, 2, 0)),
        ([SKIPPED, ERROR, SKIPPED], (), 1, (0, 0, 1, 2)),
        ([PASSED, SKIPPED, PASSED], (), None, (2, 0, 0, 1)),
    ],
)
def test_the_first_failure_or_error_gives_the_reason(
    results: list[Verdict],
    required: tuple[int, ...],
    deciding: int | None,
    counts: tuple[int, ...],
    policy: Policy,
) -> None:
    uses = [Weighed(required=index in required) for index in range(len(results))]
    total = aggregate(uses, [(verdict, None) for verdict in results], policy)
    if required:  # under the mean a required failure goes before the others
        deciding = required[0] if policy is Policy.WEIGHTED_MEAN else 0
    assert total.deciding == deciding
    assert (total.passed, total.failed, total.errors, total.skipped) == counts


def test_what_fail_fast_left_out_counts_as_nothing_in_the_mean() -> None:
    uses = [Weighed(), Weighed(weight=3)]
    results = [(FAILED, 0.4), (SKIPPED, None)]
    assert aggregate(uses, results).mean_score == pytest.approx(0.4)
    assert aggregate(uses, results, not_run=[1]).mean_score == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("score", "weight", "lost"),
    [(0.0, 1, True), (0.6, 1, False), (0.61, 1, False), (0.59, 1, True), (0.0, 0, False), (None, 1, True)],
)
def test_a_mean_is_lost_when_nothing_to_come_can_lift_it(
    score: float | None, weight: float, lost: bool
) -> None:
    uses = [Weighed(weight=weight), Weighed()]
    assert is_lost(uses, [(FAILED, score), None], Policy.WEIGHTED_MEAN) is lost
    assert not is_lost(uses, [(PASSED, 0.0), None], Policy.WEIGHTED_MEAN), "an error could make it ERROR"
    assert is_lost(uses, [(FAILED, score), None], Policy.ALL_MUST_PASS)


@pytest.mark.parametrize(
    ("results", "lost"),
    [
        ([(FAILED, 0.9), (SKIPPED, None), (ERROR, None)], False),
        ([(FAILED, 0.7), (SKIPPED, None), (ERROR, None)], True),
        ([(FAILED, 0.6), (PASSED, None), (SKIPPED, None)], False),
    ],
)
def test_what_gave_no_verdict_does_not_lower_a_mean(
    results: list[tuple[Verdict, float | None]], lost: bool
) -> None:
    assert is_lost([Weighed()] * 3, results, Policy.WEIGHTED_MEAN) is lost
    assert not is_lost([Weighed(weight=0)] * 3, results, Policy.WEIGHTED_MEAN)


results_strategy = st.lists(
    st.tuples(
        st.sampled_from([PASSED, FAILED, SKIPPED]),
        st.one_of(st.none(), st.floats(0, 1)),
        st.booleans(),
        st.floats(0, 10),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(
    results_strategy,
    st.sets(st.integers(0, 7), min_size=1),
    st.sampled_from(list(Policy)),
    st.floats(0, 1),
)
def test_no_fault_turns_a_failing_evaluation_into_a_passing_one(
    drawn: list[tuple[Verdict, float | None, bool, float, bool]],
    broken: set[int],
    policy: Policy,
    threshold: float,
) -> None:
    uses = [
        Weighed(counts=counts, weight=weight, required=required) for _, _, required, weight, counts in drawn
    ]
    honest = [(verdict, score if verdict is not SKIPPED else None) for verdict, score, *_ in drawn]
    before = aggregate(uses, honest, policy, threshold)
    faulty = [(ERROR, None) if index in broken else result for index, result in enumerate(honest)]
    after = aggregate(uses, faulty, policy, threshold)
    if before.verdict is not PASSED:
        assert after.verdict is not PASSED
    if any(index < len(uses) and uses[index].counts for index in broken):
        assert after.verdict in (ERROR, FAILED)
