"""Kappa equals published values, and its interval the normal approximation where that holds."""

import math

import pytest

from evald_server.calibration.kappa import Confusion, cohen_kappa, kappa_interval


@pytest.mark.parametrize(
    ("table", "kappa"),
    [
        pytest.param(Confusion(20, 5, 10, 15), 0.4, id="same agreement, even marginals"),
        # Equal agreement of 60 %, different marginals: the example by which kappa is usually explained.
        pytest.param(Confusion(45, 15, 25, 15), 0.1304, id="both say yes often"),
        pytest.param(Confusion(25, 35, 5, 35), 0.2593, id="they differ in how often"),
        pytest.param(Confusion(10, 0, 0, 10), 1.0, id="perfect"),
        pytest.param(Confusion(0, 10, 10, 0), -1.0, id="always the opposite"),
        pytest.param(Confusion(10, 10, 10, 10), 0.0, id="chance"),
        pytest.param(Confusion(7, 3, 0, 0), 0.0, id="people always pass"),
    ],
)
def test_kappa_is_the_published_one(table: Confusion, kappa: float) -> None:
    assert cohen_kappa(table) == pytest.approx(kappa, abs=5e-5)


@pytest.mark.parametrize("table", [Confusion(), Confusion(9, 0, 0, 0), Confusion(0, 0, 0, 9)])
def test_without_any_variation_there_is_no_kappa(table: Confusion) -> None:
    assert cohen_kappa(table) is None
    assert kappa_interval(table) is None


def _standard_error(table: Confusion) -> float:
    """Of kappa in large samples: Fleiss, Cohen and Everitt, Psychological Bulletin 72(5), 1969."""
    n = table.total
    cells = [[table.pass_pass / n, table.pass_fail / n], [table.fail_pass / n, table.fail_fail / n]]
    rows = [sum(row) for row in cells]
    columns = [cells[0][j] + cells[1][j] for j in (0, 1)]
    chance = sum(rows[i] * columns[i] for i in (0, 1))
    kappa = cohen_kappa(table) or 0.0
    on_diagonal = sum(cells[i][i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in (0, 1))
    off = (1 - kappa) ** 2 * sum(cells[i][1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1))
    whole = (kappa - chance * (1 - kappa)) ** 2
    return math.sqrt((on_diagonal + off - whole) / n) / (1 - chance)


@pytest.mark.parametrize(
    "table",
    [Confusion(2000, 500, 1000, 1500), Confusion(4000, 300, 200, 500), Confusion(900, 100, 2000, 3000)],
)
def test_in_large_samples_the_interval_is_that_of_the_normal_approximation(table: Confusion) -> None:
    kappa, interval = cohen_kappa(table), kappa_interval(table)
    assert kappa is not None
    assert interval is not None
    half = 1.96 * _standard_error(table)
    # A tenth of its width: what drawing adds.
    assert interval == pytest.approx((kappa - half, kappa + half), abs=0.2 * half)


def test_the_interval_of_perfect_agreement_is_no_point() -> None:
    small, large = kappa_interval(Confusion(5, 0, 0, 5)), kappa_interval(Confusion(500, 0, 0, 500))
    assert small is not None
    assert large is not None
    assert small.high == large.high == 1.0
    assert small.low < 0.75
    assert large.low > 0.98
    opposite = kappa_interval(Confusion(0, 5, 5, 0))
    assert opposite is not None
    assert opposite.low == -1.0
    assert -0.75 < opposite.high < 0


def test_equal_tables_give_equal_intervals() -> None:
    assert kappa_interval(Confusion(8, 2, 1, 9)) == kappa_interval(Confusion(8, 2, 1, 9))
