"""Values of labels."""

from collections.abc import Sequence

from evald.result import Kind, Verdict

OTHER = "other"
"""Label value for everything above a limit."""

ASSERTION_VERDICTS = (Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED)
METRIC_VERDICTS = (Verdict.PASSED, Verdict.ERROR, Verdict.SKIPPED)
VERDICT_NAMES = {verdict: verdict.name.lower() for verdict in Verdict}

# Longer values cannot be read in the legend of a chart.
_MAX_CALLER_VALUE = 64


def verdicts(kind: Kind) -> Sequence[Verdict]:
    """Return the verdicts that an evaluator of this kind can give."""
    return ASSERTION_VERDICTS if kind is Kind.ASSERTION else METRIC_VERDICTS


def caller_value(value: str) -> str:
    """Return the caller's value, or "other" if it is too long or not printable."""
    return value if len(value) <= _MAX_CALLER_VALUE and value.isprintable() else OTHER
