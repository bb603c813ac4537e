"""Intervals equal published ones."""

import pytest

from evald_server.suites.statistics import upper_bound, wilson


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17, 1998, table I, method 3.
        pytest.param(81, 263, 0.2553, 0.3662, id="81 of 263"),
        pytest.param(15, 148, 0.0624, 0.1605, id="15 of 148"),
        pytest.param(0, 20, 0.0, 0.1611, id="0 of 20"),
        pytest.param(1, 29, 0.0061, 0.1718, id="1 of 29"),
    ],
)
def test_wilson_is_the_published_interval(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(trials - hits, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_an_interval_holds_its_share_and_grows_with_confidence() -> None:
    for trials in (1, 3, 50, 10_000):
        for hits in {0, 1, trials // 3, trials}:
            narrow, wide = wilson(hits, trials, 0.5), wilson(hits, trials, 0.99)
            assert 0 <= wide.low <= narrow.low <= hits / trials <= narrow.high <= wide.high <= 1


@pytest.mark.parametrize(
    ("hits", "trials", "confidence", "bound"),
    [
        # 1 - 0.05^(1/n), of which 3/n is the rule of three: Hanley and Lippman-Hand, JAMA 249(13), 1983.
        pytest.param(0, 30, 0.95, 0.0950, id="no hit in 30"),
        pytest.param(0, 300, 0.95, 0.00994, id="no hit in 300"),
        # One side of two-sided intervals of 95 %, as in published tables of exact limits.
        pytest.param(4, 20, 0.975, 0.4366, id="4 of 20"),
        pytest.param(1, 10, 0.975, 0.4450, id="1 of 10"),
        pytest.param(5, 10, 0.975, 0.8129, id="5 of 10"),
        pytest.param(10, 10, 0.95, 1.0, id="all of 10"),
        pytest.param(0, 0, 0.95, 1.0, id="nothing tried"),
    ],
)
def test_the_upper_bound_is_the_published_one(
    hits: int, trials: int, confidence: float, bound: float
) -> None:
    assert upper_bound(hits, trials, confidence) == pytest.approx(bound, abs=5e-5)


def test_at_the_bound_so_few_hits_are_as_unlikely_as_promised() -> None:
    from math import comb

    for hits, trials in ((0, 7), (1, 7), (3, 40), (39, 40)):
        p = upper_bound(hits, trials)
        at_most = sum(comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits + 1))
        assert at_most == pytest.approx(0.05, abs=1e-9)


def test_nothing_tried_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (1, 0)])
def test_more_hits_than_trials_are_refused(hits: int, trials: int) -> None:
    with pytest.raises(ValueError, match="wanted 0 <= hits <= trials"):
        wilson(hits, trials)
    with pytest.raises(ValueError, match="wanted 0 <= hits <= trials"):
        upper_bound(hits, trials)
