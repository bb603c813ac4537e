"""Writes reference.json: figures of SciPy and statsmodels, which the tests do not need.

python -m venv /tmp/scipy && /tmp/scipy/bin/pip install scipy==1.17.1 statsmodels==0.15.0
/tmp/scipy/bin/python tests/suites/data/make_reference.py > tests/suites/data/reference.json
"""

import json
import math
import random
import sys

import numpy as np
import scipy
import statsmodels
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

WILSON = [(0, 1), (1, 1), (3, 7), (50, 50), (84, 200), (999, 1000), (21.5, 40.25)]
PAIRS = [(1, 0), (5, 0), (4, 0), (8, 2), (2, 8), (10, 10), (60, 40), (1200, 1100), (0, 7)]
UPPER = [(0, 5), (4, 50), (4, 7), (1, 1000)]
TWO = [(0, 1), (2, 2), (30, 12), (5, 0)]


def permutation(changes: list[float], resamples: float) -> float:
    return float(
        stats.permutation_test(
            (np.array(changes),),
            lambda x, axis=-1: np.sum(x, axis=axis),
            permutation_type="samples",
            alternative="less",
            n_resamples=resamples,
            rng=np.random.default_rng(7),
            vectorized=True,
        ).pvalue
    )


def samples() -> list[list[float]]:
    source = random.Random(3)
    # Fractions that a float holds exactly: SciPy misses ties of sums of others around zero.
    eighths = [[source.randint(-6, 4) / 8 for _ in range(n)] for n in (2, 3, 5, 9, 12)]
    quarters = [[source.randint(-4, 3) / 4 for _ in range(n)] for n in (10, 13)]
    return [*eighths, *quarters, [-1.0] * 4 + [0.0] * 3, [0.25, 0.5, 1.0]]


def large() -> list[float]:
    source = random.Random(4)
    return [round(source.gauss(-0.02, 0.2), 3) for _ in range(200)]


def d_z(changes: list[float]) -> float:
    """Return the t statistic of the one-sample test, divided by sqrt(n)."""
    return float(stats.ttest_1samp(changes, 0).statistic) / math.sqrt(len(changes))


json.dump(
    {
        "made_by": f"SciPy {scipy.__version__}, statsmodels {statsmodels.__version__}",
        "wilson": [[h, n, *map(float, proportion_confint(h, n, method="wilson"))] for h, n in WILSON],
        "mcnemar_less": [
            [b, f, float(stats.binomtest(b, b + f, 0.5, alternative="greater").pvalue)] for b, f in PAIRS
        ],
        "mcnemar_two_sided": [[b, f, float(mcnemar([[3, b], [f, 4]], exact=True).pvalue)] for b, f in TWO],
        "upper": [[h, n, float(stats.beta.ppf(0.95, h + 1, n - h))] for h, n in UPPER],
        "permutation_exact": [[x, permutation(x, np.inf)] for x in samples()],
        "permutation_drawn": [large(), permutation(large(), 200_000)],
        "effect_size": [[x, d_z(x)] for x in samples()[2:7]],
        "hypergeometric": [
            [n, c, k, float(stats.hypergeom.sf(0, n, c, k)), float(stats.hypergeom.pmf(k, n, c, k))]
            for n, c, k in [(5, 0, 1), (5, 1, 1), (6, 3, 3), (4, 3, 2), (100, 37, 8), (8, 8, 8)]
        ],
    },
    sys.stdout,
    indent=1,
)
