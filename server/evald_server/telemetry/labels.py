"""Values of labels."""

from collections.abc import Sequence

from evald.result import Kind, Verdict

OTHER = "other"
"""Label value of everything that found its label full."""

ASSERTION_VERDICTS = (Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED)
METRIC_VERDICTS = (Verdict.PASSED, Verdict.ERROR, Verdict.SKIPPED)
VERDICT_NAMES = {verdict: verdict.name.lower() for verdict in Verdict}

# A value that a caller chooses stays readable in a legend.
_MAX_CALLER_VALUE = 64


def verdicts(kind: Kind) -> Sequence[Verdict]:
    """Those that an evaluator of this kind can give."""
    return ASSERTION_VERDICTS if kind is Kind.ASSERTION else METRIC_VERDICTS


def caller_value(value: str) -> str:
    """The caller's value, or "other" for what nobody could read."""
    return value if len(value) <= _MAX_CALLER_VALUE and value.isprintable() else OTHER
