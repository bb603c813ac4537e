"""Statistics equal those of SciPy and statsmodels, and published ones."""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald_server.suites.statistics import (
    change_interval,
    effect_size,
    estimate_mean,
    mcnemar_p,
    pass_at_k,
    pass_hat_k,
    permutation_p,
    smallest_detectable_drop,
    upper_bound,
    wilson,
)

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "data/reference.json").read_text())


def test_wilson_is_that_of_statsmodels() -> None:
    for hits, trials, low, high in REFERENCE["wilson"]:
        assert wilson(hits, trials) == pytest.approx((low, high), abs=1e-12)


def test_the_upper_bound_is_a_quantile_of_the_beta_distribution() -> None:
    for hits, trials, bound in REFERENCE["upper"]:
        assert upper_bound(hits, trials) == pytest.approx(bound, abs=1e-12)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for broken, fixed, p in REFERENCE["mcnemar_less"]:
        assert mcnemar_p(broken, fixed) == pytest.approx(p, rel=1e-9)
    for broken, fixed, p in REFERENCE["mcnemar_two_sided"]:
        assert min(2 * min(mcnemar_p(broken, fixed), mcnemar_p(fixed, broken)), 1) == pytest.approx(
            p, rel=1e-9
        )
    assert mcnemar_p(0, 0) == 1
    assert mcnemar_p(600_000, 400_000) == pytest.approx(0, abs=1e-12)


def test_the_permutation_test_is_that_of_scipy() -> None:
    for changes, p in REFERENCE["permutation_exact"]:
        assert permutation_p(changes) == pytest.approx(p, rel=1e-12)
    changes, p = REFERENCE["permutation_drawn"]
    # 20,000 draws: three standard errors.
    assert permutation_p(changes) == pytest.approx(p, abs=3 * math.sqrt(p * (1 - p) / 20_000))


def test_permutations_are_drawn_the_same_way_each_time_and_p_is_never_zero() -> None:
    source = random.Random(1)
    changes = [-source.random() for _ in range(500)]
    assert permutation_p(changes) == permutation_p(changes) == pytest.approx(1 / 20_001)


def test_equal_sums_of_decimals_count_as_equal() -> None:
    # Of all signs of 0.1, 0.2, 0.3 the sums are -0.6, -0.4, -0.2, 0, 0, 0.2, 0.4, 0.6, although 0.1 + 0.2 is not 0.3.
    assert permutation_p([0.1, 0.2, -0.3]) == 5 / 8
    # The same with thirds, which no float holds exactly.
    assert permutation_p([1 / 3, 1 / 3, -2 / 3]) == 5 / 8


def test_no_change_is_no_evidence() -> None:
    assert permutation_p([]) == permutation_p([0.0] * 30) == 1
    # Score and verdict agree: a permutation test of verdicts is McNemar's.
    assert permutation_p([-1.0] * 8 + [1.0] * 2 + [0.0] * 90) == pytest.approx(mcnemar_p(8, 2))


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=9), st.data())
def test_a_lower_value_never_raises_p(eighths: list[int], data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(eighths) - 1))
    lower = eighths.copy()
    lower[position] = data.draw(st.integers(-8, eighths[position]))
    assert permutation_p([x / 8 for x in lower]) <= permutation_p([x / 8 for x in eighths])


def test_the_effect_size_is_t_over_the_root_of_n() -> None:
    for changes, d_z in REFERENCE["effect_size"]:
        assert effect_size(changes) == pytest.approx(d_z, rel=1e-9)
    assert effect_size([0.1, 0.3]) == pytest.approx(math.sqrt(2))
    assert effect_size([0.1]) is effect_size([]) is effect_size([0.1] * 7) is None
    assert effect_size([0.8 - 0.7, 0.9 - 0.8]) is None, "rounding is no spread"


def test_pass_at_k_and_pass_hat_k_are_hypergeometric() -> None:
    for n, c, k, some, every in REFERENCE["hypergeometric"]:
        assert pass_at_k(n, c, k) == pytest.approx(some)
        assert pass_hat_k(n, c, k) == pytest.approx(every)


@given(st.text("PF", min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_groups_of_trials(letters: str, k: int) -> None:
    groups = list(itertools.combinations(letters, k))
    n, c = len(letters), letters.count("P")
    if not groups:
        assert pass_at_k(n, c, k) is pass_hat_k(n, c, k) is None
        return
    assert pass_at_k(n, c, k) == pytest.approx(sum("P" in group for group in groups) / len(groups))
    assert pass_hat_k(n, c, k) == pytest.approx(sum("F" not in group for group in groups) / len(groups))


@pytest.mark.parametrize(("trials", "passed", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_trials_are_refused(trials: int, passed: int, k: int) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="wanted"):
            estimate(trials, passed, k)


def test_a_mean_of_verdicts_has_wilsons_interval() -> None:
    for passed, cases in ((0, 1), (3, 7), (50, 50)):
        estimate = estimate_mean([(1.0, passed), (0.0, cases - passed)], groups=4)
        assert estimate.value == passed / cases
        assert estimate.interval == pytest.approx(wilson(passed, cases), abs=1e-9)
    with pytest.raises(ValueError, match="no case"):
        estimate_mean([])


def test_trials_narrow_an_interval_as_far_as_they_are_independent() -> None:
    alike = estimate_mean([(1.0, 25), (0.0, 25)], groups=4).interval
    mixed = estimate_mean([(1.0, 10), (0.75, 10), (0.5, 10), (0.25, 10), (0.0, 10)], groups=4).interval
    independent = estimate_mean([(0.5, 50)], groups=4).interval
    widths = [interval.high - interval.low for interval in (alike, mixed, independent)]
    assert widths == sorted(widths, reverse=True)
    assert alike == pytest.approx(wilson(25, 50), abs=1e-9)
    assert independent == pytest.approx(wilson(100, 200), abs=1e-9)
    # With one passing and one failing case added: mean 4/6, variance 21/36 - 16/36, so 4 cases count as 4 * 8/5.
    few = estimate_mean([(1.0, 2), (0.5, 2)], groups=4)
    assert (few.value, few.interval) == (0.75, pytest.approx(wilson(4.8, 6.4), abs=1e-9))


@pytest.mark.parametrize("spread", [0.3, 1.0, 5.0], ids=["alike", "mixed", "independent"])
@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_the_interval_of_a_mean_holds_its_confidence(spread: float, mean: float) -> None:
    """Of 600 suites of 40 cases and 4 trials, 95 % of the intervals hold the true rate; less is a broken formula."""
    source, hits = random.Random(11), 0
    for _ in range(600):
        rates = [source.betavariate(mean * spread, (1 - mean) * spread) for _ in range(40)]
        shares = [(sum(source.random() < rate for _ in range(4)) / 4, 1) for rate in rates]
        interval = estimate_mean(shares, groups=4).interval
        hits += interval.low <= mean <= interval.high
    # Three standard errors of 600 draws are 2.7 %.
    assert hits / 600 > 0.95 - 0.027


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [
        # Fagerland, Lydersen and Laake, Statistics in Medicine 33, 2014, airway hyper-responsiveness; and complete
        # response to therapy, as their R package contingencytables computes it.
        pytest.param((1, 7, 1, 12), -0.5069, -0.0256, id="1 7 1 12"),
        pytest.param((59, 16, 6, 80), -0.1186, -0.0046, id="59 16 6 80"),
        # A correlation of -1/2, so the half width is that of wilson(20, 40), 0.1480, times the root of 3.
        pytest.param((5, 15, 15, 5), -0.2564, 0.2564, id="negative correlation"),
        # None passed before, so there is no correlation: 1/2 minus the root of 0.2007^2 + 0.1611^2, and plus 0.2007.
        pytest.param((0, 0, 10, 10), 0.2426, 0.7007, id="no correlation"),
        pytest.param((0, 0, 0, 0), -1, 1, id="no pair"),
    ],
)
def test_the_interval_of_a_change_is_the_published_one(
    pairs: tuple[int, int, int, int], low: float, high: float
) -> None:
    assert change_interval(*pairs) == pytest.approx((low, high), abs=5.1e-5)


@given(st.tuples(*[st.integers(0, 40)] * 4))
def test_the_interval_of_a_change_holds_the_change_and_is_symmetric(pairs: tuple[int, int, int, int]) -> None:
    both, broken, fixed, neither = pairs
    interval = change_interval(*pairs)
    change = (fixed - broken) / sum(pairs) if sum(pairs) else 0
    assert -1 <= interval.low <= change + 1e-12
    assert change - 1e-12 <= interval.high <= 1
    swapped = change_interval(both, fixed, broken, neither)
    assert (-swapped.high, -swapped.low) == pytest.approx(interval, abs=1e-12)


def _power(pairs: int, drop: float, noise: float) -> float:
    """How likely mcnemar_p is below 5 %, by adding up all outcomes."""
    changed, broken = drop + 2 * noise, (drop + noise) / (drop + 2 * noise)

    def binomial(n: int, k: int, p: float) -> float:
        return math.comb(n, k) * p**k * (1 - p) ** (n - k)

    return sum(
        binomial(pairs, n, changed)
        * sum(binomial(n, b, broken) for b in range(n + 1) if mcnemar_p(b, n - b) < 0.05)
        for n in range(pairs + 1)
    )


@pytest.mark.parametrize("pairs", [5, 8, 50, 200])
def test_a_drop_of_the_smallest_detectable_size_is_found_four_times_in_five(pairs: int) -> None:
    drop = smallest_detectable_drop(pairs)
    assert drop is not None
    assert _power(pairs, drop, 0) == pytest.approx(0.8, abs=1e-6 if pairs <= 8 else 0.02)


@pytest.mark.parametrize(("pairs", "noise"), [(15, 0.15), (50, 0.04), (100, 0.05), (100, 0.1)])
def test_noise_asks_for_a_larger_drop(pairs: int, noise: float) -> None:
    drop, quiet = smallest_detectable_drop(pairs, noise), smallest_detectable_drop(pairs)
    assert drop is not None
    assert quiet is not None
    assert drop > quiet
    # The exact test finds a little less than the approximation says.
    assert 0.68 < _power(pairs, drop, noise) < 0.85


def test_four_pairs_show_nothing() -> None:
    assert smallest_detectable_drop(4) is None
    assert mcnemar_p(4, 0) > 0.05 > mcnemar_p(5, 0)


def test_the_table_of_the_documentation_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs/statistics.md").read_text(encoding="utf-8")
    head, _, row = page.partition("| pairs |")[2].splitlines()[:3]
    pairs = [int(cell.replace(",", "")) for cell in head.split("|") if cell.strip()]
    shown = [float(cell.strip().removesuffix(" %")) for cell in row.split("|")[2:] if cell.strip()]
    computed = [smallest_detectable_drop(count) or 0 for count in pairs]
    assert shown == pytest.approx([100 * drop for drop in computed], abs=0.5)
